"""Text files that people edit may begin with a byte order mark. One that is not UTF-8 is told as such."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.auth.plainacl import read_accounts
from mqspark.base.pem import CERTIFICATE, check_pem
from mqspark.base.textfile import read_text
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import ConfigError
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import TopicConfigAndQueueMapping, TopicRemappingDetailWrapper
from mqspark_server.authfiles import _key
from mqspark_server.commands.administration.schema_cli import _body
from mqspark_server.commands.administration.staticplans import read_plan
from mqspark_server.commands.contexts import load_contexts
from mqspark_server.commands.messages.rows import parse_row
from mqspark_server.scheduler.jobsfile import read_jobs_file
from mqspark_server.settings.settings import file_layer
from pyspark_pymq.optiontexts import OptionTexts
from pyspark_pymq.payloadoptions import PayloadOptions
from pyspark_pymq.typed.typedcolumns import schema_text

PLAN = encode_body(
    TopicRemappingDetailWrapper(
        topic="T", broker_config_map={"a": TopicConfigAndQueueMapping(topic_name="T")}
    )
).decode()


def _columns(path: Path) -> str:
    options = PayloadOptions.parse(OptionTexts({"payloadFormat": "json", "payloadSchemaFile": str(path)}))
    assert options is not None
    return schema_text(options)


Reader = Callable[[Path], object]
READERS: dict[str, tuple[str, Reader]] = {
    "x.conf": ("listenPort = 1\n", lambda path: file_layer(path).values),
    "x.toml": ("listenPort = 1\n", lambda path: file_layer(path).values),
    "contexts.toml": (
        '[contexts.here]\nnameserver = "127.0.0.1:9876"\n',
        lambda path: load_contexts().get("here"),
    ),
    "jobs.toml": ("maxRunning = 2\n", read_jobs_file),
    "keys": ("accessKey: a\nsecretKey: b\n", lambda path: Credentials.from_file(path).access_key),
    "acl.yml": (
        "accounts:\n- accessKey: reader\n  secretKey: 12345678\n",
        lambda path: read_accounts(path.read_bytes(), str(path))[0].name,
    ),
    "users.auth.key": ("ab" * 32, lambda path: _key(path, is_new=False)),
    "plan": (PLAN, lambda path: read_plan(str(path), "T").topic),
    "x.avsc": ('{"type": "string"}', lambda path: _body(str(path), None, ())["schema"]),
    "x.ddl": ("id bigint", _columns),
}


@pytest.fixture(params=READERS)
def edited(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str, Reader]:
    monkeypatch.setenv("MQSPARK_CONTEXTS", str(tmp_path / "contexts.toml"))
    monkeypatch.delenv("MQSPARK_AUTH_KEY", raising=False)
    path = tmp_path / request.param
    path.touch(0o600)
    return path, *READERS[request.param]


def test_a_byte_order_mark_is_passed_over(edited: tuple[Path, str, Reader]) -> None:
    path, text, read = edited
    path.write_bytes(text.encode())
    expected = read(path)
    path.write_bytes(codecs.BOM_UTF8 + text.encode())
    assert read(path) == expected


def test_a_file_in_utf_16_is_told_as_such(edited: tuple[Path, str, Reader]) -> None:
    path, text, read = edited
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(ConfigError, match=f"{path.name} is UTF-16 text: save it as UTF-8"):
        read(path)


def test_contexts_that_cannot_be_looked_for_are_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MQSPARK_CONTEXTS", str(tmp_path / "file" / "contexts.toml"))
    with pytest.raises(ConfigError, match=r"cannot read .*: Not a directory"):
        load_contexts()


def test_a_line_of_json_may_follow_a_byte_order_mark() -> None:
    assert parse_row(codecs.BOM_UTF8 + b'{"body": "a"}', "T", 1).body == b"a"


def test_a_pem_file_with_a_byte_order_mark_is_refused(tmp_path: Path) -> None:
    """OpenSSL would pass over its first certificate."""
    path = tmp_path / "a.pem"
    path.write_bytes(codecs.BOM_UTF8 + b"-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(ValueError, match="byte order mark"):
        check_pem(path, CERTIFICATE)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot read .*: No such file"),
        (b"12345", "is larger than 4 bytes"),
        (b"a\xff", r"is not UTF-8 text \(byte 1\)"),
    ],
)
def test_a_text_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_text(path, 4, "aSetting")
    assert (str(path) in str(caught.value), caught.value.key) == (True, "aSetting")


def test_a_text_of_the_greatest_length_is_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"1234")
    assert read_text(tmp_path / "text", 4) == "1234"
