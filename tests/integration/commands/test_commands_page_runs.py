"""The transcripts of docs/command-line.md, one after the other, against a new ``dev``.

What they show is compared where they show something: ids, times, addresses and numbers may differ, and an id that the
page shows stands for the one that came, in later commands, too.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.commands import Outcome, mqspark
from tests.support.dev import DevCluster

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "command-line.md"
NAMESRV = "127.0.0.1:9876"
_ID = re.compile(r"\b[0-9A-F]{32}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d")
PATIENCE_S = 20.0
"""For what the index or a trace shows a moment later."""


class Step(NamedTuple):
    command: str
    shown: list[str]


def steps() -> Iterator[Step]:
    for part in PAGE.read_text().split("```console\n")[1:]:
        lines = part.partition("```")[0].splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        assert starts[:1] == [0]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield Step(lines[start][2:], lines[start + 1 : end])


def plain(lines: list[str]) -> list[str]:
    """Without what differs from run to run."""
    text = "\n".join(lines)
    for pattern, mark in ((_TIME, "TIME"), (_ID, "ID"), (re.compile(r"\d+(\.\d+)*(:\d+)?%?"), "0")):
        text = pattern.sub(mark, text)
    return [" ".join(line.split()) for line in text.splitlines()]


def run(command: str) -> Outcome:
    """``echo TEXT | mqspark ...`` or ``mqspark ...``."""
    words, stdin = shlex.split(command), b""
    if words[0] == "echo":
        assert words[2:4] == ["|", "mqspark"]
        stdin, words = words[1].encode() + b"\n", words[3:]
    assert words[0] == "mqspark"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        outcome = mqspark(*words[1:], stdin=stdin)
        if outcome.code != 3 or words[1] != "message" or time.monotonic() > deadline:
            return outcome
        time.sleep(0.2)


@pytest.mark.slow("fifty commands")
def test_the_transcripts_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQSPARK_CONTEXTS", str(tmp_path / "contexts.toml"))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with DevCluster(tmp_path / "store") as dev:
        came: dict[str, str] = {NAMESRV: dev.nameserver}
        for command, shown in steps():
            for of_page, real in came.items():
                command = re.sub(rf"(?<![\w-]){re.escape(of_page)}(?![\w-])", real, command)
            outcome = run(command)
            assert outcome.code == 0, f"{command}\n{outcome.err}"
            if shown:
                real_lines = (outcome.out + outcome.err).splitlines()
                assert plain(real_lines) == plain(shown), command
                came |= zip(_ID.findall("\n".join(shown)), _ID.findall(outcome.out), strict=True)


def test_all_commands_of_the_page_are_in_transcripts_or_need_more_than_a_dev() -> None:
    """A line in another block is one that a dev cannot run."""
    others = re.findall(r"```text\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    lines = [line for block in others for line in block.splitlines()]
    assert all(line.startswith(("mqspark user", "mqspark context add prod")) for line in lines), lines
    assert len(list(steps())) > 40
