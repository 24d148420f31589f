"""What a terminal is shown of a cluster or a store: names, remarks and bodies that move its cursor, or set its title,
are shown as text.
"""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from mqspark.errors import BrokerError
from mqspark_server.commands.output import Column, Output
from mqspark_server.commands.refusals import CommandFailed, Missing, describe
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
    shown = capsys.readouterr().out
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
