"""What a terminal is shown of a cluster or a store: names, remarks and bodies that move its cursor, or set its title,
are shown as text.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from mqspark.errors import BrokerError
from mqspark_server.commands.output import Column, Output, remark
from mqspark_server.commands.refusals import CommandFailed, Missing, describe
from pyspark_pymq import doctor
from tests.support.commands import mqspark
from tests.support.store_tools import flush, opened, put

EVIL = "a\x1b]0;owned\x07\x1b[2J\rb\u202e\x9b1m\nc"
BAD = ("\x1b", "\x07", "\r", "\u202e", "\x9b")


def assert_plain(text: str, lines: int) -> None:
    assert not [bad for bad in BAD if bad in text], repr(text)
    assert len(text.splitlines()) == lines, text


def test_a_store_is_shown_as_text(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "Orders", 0, EVIL.encode(), b"KEYS\x01k\x1b[2J\x02")
    flush(store)
    store.close()
    dumped = mqspark("store", "dump", "records", str(tmp_path))
    assert dumped.code == 0
    assert_plain(dumped.out, 1)
    assert "body=a\\x1b]0;owned\\x07" in dumped.out
    assert_plain(mqspark("store", "stats", str(tmp_path)).out, 6)


def test_what_was_done_and_headings(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.done(f"{EVIL}: cleaned", {})
    output.heading(EVIL)
    output.rows((Column("name", "NAME"), Column("other", "OTHER")), [{"name": EVIL, "other": [EVIL]}])
    output.record({"name": EVIL, "table": {EVIL: EVIL}})
    output.lines([EVIL, f"  {EVIL}"])
    with output.listing() as listing:
        listing.add({}, f"{EVIL}: cleaned")
    remark(EVIL)
    found = capsys.readouterr()
    shown = found.out + found.err
    assert not [bad for bad in BAD if bad in shown.replace("\x1b[1m", "").replace("\x1b[0m", "")], repr(shown)


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(1, EVIL, address="b:1"),
        CommandFailed(f"broker {EVIL} refuses"),
        Missing("topic", "ab", known=[EVIL, "ac\x1b"], advice=EVIL),
        click.ClickException(EVIL),
        OSError(EVIL),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors(error: Exception) -> None:
    assert_plain(describe(error), 1)


@pytest.mark.parametrize("quoted", ["body_error", "delay"])
def test_a_file_of_somebody_else_is_quoted_as_text(quoted: str) -> None:
    """Nothing is sent: the first line is wrong."""
    line = json.dumps({"body": "x", quoted: EVIL}).encode()
    outcome = mqspark("produce", "T", "--jsonl", "-n", "127.0.0.1:1", stdin=line)
    assert outcome.code == 2
    assert_plain(outcome.err, len(outcome.err.splitlines()))
    assert "owned" in outcome.err.splitlines()[-1]


def test_keys_of_a_settings_file_are_shown_as_text(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("a\x1b]0;owned\x07=1\n")
    assert_plain(mqspark("config", "check", str(tmp_path / "broker.conf")).err, 1)


def test_what_spark_cannot_reach_is_shown_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda nameserver: [doctor.CheckResult("cluster", False, EVIL)])
    assert doctor.report("n:1") == 1
    assert_plain(capsys.readouterr().out, 1)
