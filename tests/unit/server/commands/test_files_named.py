"""A file that an option names and that cannot be used is one line, which names it and says what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import ClusterInfo
from tests.support.commands import mqspark
from tests.support.scripted import Scripted, served

NOWHERE = "127.0.0.1:9"
ON = ("topic", "list", "-n", NOWHERE)
ADD = ("context", "add", "here", "-n", NOWHERE)
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
OPTIONS = [
    (*ON, "--credentials"),
    (*ON, "--tls-ca"),
    (*ON, "--tls-cert"),
    (*ON, "--tls-cert", "CERT", "--tls-key"),
    (*ADD, "--credentials"),
    (*ADD, "--tls-ca"),
    (*ADD, "--tls-cert"),
    (*ADD, "--tls-cert", "CERT", "--tls-key"),
    ("config", "check"),
    ("broker", "run", "-c"),
    ("namesrv", "run", "-c"),
    ("controller", "run", "-c"),
    ("dev", "-c"),
    ("job", "list", "-c"),
    ("job", "history", "-c"),
    ("user", "list", "--directory"),
    ("user", "list", "--store"),
    ("topic", "remap", "T", "-n", NOWHERE, "--plan"),
    ("store", "fsck"),
    ("store", "stats"),
]
CASES = [
    (words, kind)
    for words in OPTIONS
    for kind in ("missing", "text", "empty", "directory")
    # An empty file has the default settings, and a directory may have users.
    if not (kind == "empty" and words[-1] in ("-c", "check"))
    and not (kind == "directory" and words[0] == "user")
]


@pytest.fixture(autouse=True)
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "contexts.toml"
    monkeypatch.setenv("MQSPARK_CONTEXTS", str(path))
    return path


@pytest.mark.parametrize(("words", "kind"), CASES)
def test_a_file_that_cannot_be_used_is_named(
    words: tuple[str, ...], kind: str, tmp_path: Path, contexts: Path
) -> None:
    (tmp_path / "CERT").write_text(CERTIFICATE)
    (tmp_path / "text").write_text("this is no file of that kind\n")
    (tmp_path / "empty").touch()
    (tmp_path / "directory").mkdir()
    outcome = mqspark(
        *(str(tmp_path / "CERT") if word == "CERT" else word for word in words), str(tmp_path / kind)
    )
    assert outcome.code in (1, 2)
    error = outcome.err.strip().splitlines()[-1]
    assert str(tmp_path / kind) in error, outcome.err
    assert "Traceback" not in outcome.err
    assert "_ssl.c" not in outcome.err
    assert not contexts.exists()
    assert not (tmp_path / "missing").exists(), "what is only looked at is not made"


def test_a_context_is_saved_and_says_that_its_servers_do_not_answer(contexts: Path) -> None:
    added = mqspark(*ADD)
    assert (added.code, contexts.exists()) == (0, True)
    assert NOWHERE in added.err
    assert "mqspark doctor --context here looks into it" in added.err


def test_a_context_of_an_unknown_cluster_is_saved_and_says_so() -> None:
    body = encode_body(ClusterInfo(cluster_addr_table={"Main": []}))
    names = Scripted(lambda command: (0, None, body))
    with served(names):
        words = ("context", "add", "here", "-n", names.address)
        assert "there is no cluster 'Mian'; did you mean 'Main'?" in mqspark(*words, "--cluster", "Mian").err
        assert mqspark(*words, "--cluster", "Main").err == ""
