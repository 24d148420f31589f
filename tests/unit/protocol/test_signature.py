"""Signatures beside those of a real Java client, and where a client's keys come from."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from mqspark import ClientOptions, Credentials
from mqspark.client.remoting.credentials import signer_of
from mqspark.errors import ConfigError
from mqspark.protocol.connection import Connection
from mqspark.protocol.signature import Signer, content_of

GOLDEN = Path(__file__).parents[2] / "golden"
ACCESS_KEY, SECRET_KEY = "AccessKeyGolden", "SecretKeyGolden-0123"
VARIABLES = (
    "MQSPARK_ACCESS_KEY",
    "MQSPARK_SECRET_KEY",
    "MQSPARK_SECURITY_TOKEN",
    "MQSPARK_CREDENTIALS_FILE",
)


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def vectors(op: str) -> list[dict[str, object]]:
    lines = (GOLDEN / "vectors" / "acl.jsonl").read_text().splitlines()
    return [vector for vector in map(json.loads, lines) if str(vector["op"]) == op]


def test_hmac_is_javas() -> None:
    checked = 0
    for vector in vectors("calSignature"):
        if vector["algorithm"] == "HmacSHA1":
            signer = Signer("any", str(vector["key"]))
            assert signer.signature(str(vector["data"]).encode()) == vector["signature"]
            checked += 1
    assert checked >= 3


@pytest.mark.parametrize(
    "vector", vectors("AclClientRPCHook"), ids=lambda vector: str(vector["extFields"])[:60]
)
def test_a_request_is_signed_as_by_the_hook(vector: dict[str, object]) -> None:
    expected = dict(vector["extFields"])  # type: ignore[call-overload]
    added = {"AccessKey", "SecurityToken", "Signature"}
    header = {name: value for name, value in expected.items() if name not in added}
    token = vector["securityToken"]
    signer = Signer(ACCESS_KEY, SECRET_KEY, None if token is None else str(token))
    assert signer.signed(header, str(vector["body"] or "").encode()) == expected


@pytest.mark.parametrize("vector", vectors("AclClientRPCHook typed header"), ids=["plain", "with a token"])
def test_a_typed_header_is_signed_as_by_the_hook(vector: dict[str, object]) -> None:
    expected = dict(vector["finalExt"])  # type: ignore[call-overload]
    signer = Signer(ACCESS_KEY, SECRET_KEY, expected.get("SecurityToken"))
    header = {name: value for name, value in expected.items() if name[0].islower()}
    assert signer.signed(header) == expected


def test_the_requests_of_a_java_client_have_our_signatures() -> None:
    signed = 0
    for line in (GOLDEN / "frames" / "send_acl.jsonl").read_text().splitlines():
        frame = json.loads(line)
        (command,) = Connection().receive_data(bytes.fromhex(frame["frame_hex"]))
        if frame["dir"] == "c2s" and "Signature" in command.ext:
            signature = Signer(ACCESS_KEY, SECRET_KEY).signature(content_of(command.ext), command.body)
            assert signature == command.ext["Signature"]
            signed += 1
    assert signed >= 5


def test_names_are_ordered_as_by_java() -> None:
    """By UTF-16 code unit: a character beyond the first plane comes before one at the end of it."""
    assert content_of({"\uffee": "2", "\U0001f600": "1", "Signature": "no"}) == b"12"


# --- where the keys come from ----------------------------------------------------------------------------


def test_nothing_is_signed_without_keys() -> None:
    assert signer_of(None) is None


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQSPARK_ACCESS_KEY", "a")
    monkeypatch.setenv("MQSPARK_SECRET_KEY", "s")
    assert Credentials.from_environment() == Credentials("a", "s")
    monkeypatch.setenv("MQSPARK_SECURITY_TOKEN", "t")
    assert Credentials.from_environment() == Credentials("a", "s", "t")
    signer = signer_of(Credentials("argument", "x"))
    assert signer is not None
    assert signer.fields == {"AccessKey": "argument"}


@pytest.mark.parametrize("name", ["MQSPARK_ACCESS_KEY", "MQSPARK_SECRET_KEY"])
def test_half_of_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "canary")
    with pytest.raises(ConfigError, match="the environment lacks MQSPARK_") as caught:
        Credentials.from_environment()
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "accessKey: rocketmq\nsecretKey: 'se:cret'\n",
        '# tools.yml\nsecretKey = "se:cret"\naccessKey = rocketmq',
        "accessKey: rocketmq\r\nsecretKey: se:cret\r\nother: 1\r\n",
    ],
)
def test_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(text)
    assert Credentials.from_file(path) == Credentials("rocketmq", "se:cret")
    monkeypatch.setenv("MQSPARK_CREDENTIALS_FILE", str(path))
    assert Credentials.from_environment() == Credentials("rocketmq", "se:cret")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot read the credentials file .*: No such file"),
        (b"\xff\xfecanary", "is UTF-16 text: save it as UTF-8"),
        (b"accessKey: a\nsecretKey: canary\xff\n", r"is not UTF-8 text \(byte 30\)"),
        (b"accessKey: canary\n", "has no line secretKey"),
        (b"secretKey: canary\naccessKey:\n", "has no line accessKey"),
        (b"canary " * 10_000, "is larger than 65536 bytes"),
    ],
)
def test_a_bad_file_is_named_and_not_shown(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=text) as caught:
        Credentials.from_file(path)
    assert "canary" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(("access_key", "secret_key"), [("", "canary"), ("canary", "")])
def test_an_empty_key_is_refused(access_key: str, secret_key: str) -> None:
    with pytest.raises(ConfigError, match="must be a text that is not empty") as caught:
        Credentials(access_key, secret_key)
    assert "canary" not in str(caught.value)


def test_keys_are_not_shown() -> None:
    keys = Credentials("canary-a", "canary-s", "canary-t")
    signer = signer_of(keys)
    for shown in (repr(keys), str(keys), repr(ClientOptions(credentials=keys)), repr(signer)):
        assert "canary" not in shown
