"""What was set aside when a log was taken back, read from its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark.message import MessageExt
from mqspark.store.tools.diverged import Damaged, SavedPart, messages_of, saved_parts
from mqspark_server.cli import main
from tests.unit.broker_kit import SEND, Bench, send_ext

COUNT = 20


def set_aside(directory: Path) -> tuple[SavedPart, list[int]]:
    """The second half of a log as it is saved, and where its messages begin."""
    bench = Bench(directory / "broker")
    peer = bench.peer()
    ends = []
    for number in range(COUNT):
        peer.give(SEND, send_ext("T", 0), b"%03d" % number)
        bench.broker.turn()
        ends.append(bench.store.log.position)
    bench.flush()
    begin = ends[COUNT // 2 - 1]
    data = bench.store.copy.log_bytes(begin, ends[-1] - begin)
    bench.close()
    saved = directory / "mqspark.diverged"
    saved.mkdir()
    (saved / f"{begin:020d}-1700000000000.log").write_bytes(data)
    (saved / "notes.txt").write_text("not a part")
    (part,) = saved_parts(saved)
    return part, [begin, *ends[COUNT // 2 : -1]]


def bodies(part: SavedPart) -> list[bytes]:
    return [each.body for each in messages_of(part) if isinstance(each, MessageExt)]


def damages(part: SavedPart) -> list[Damaged]:
    return [each for each in messages_of(part) if isinstance(each, Damaged)]


def test_the_messages_of_a_part(tmp_path: Path) -> None:
    part, starts = set_aside(tmp_path)
    assert (part.position, part.saved_ms) == (starts[0], 1_700_000_000_000)
    found = [each for each in messages_of(part) if isinstance(each, MessageExt)]
    assert [each.physical_offset for each in found] == starts
    assert bodies(part) == [b"%03d" % number for number in range(COUNT // 2, COUNT)]
    assert saved_parts(tmp_path / "none") == []


def test_damage_is_stepped_over_and_told(tmp_path: Path) -> None:
    part, starts = set_aside(tmp_path)
    data = bytearray(part.path.read_bytes())
    data[starts[3] - starts[0] + 30] ^= 1  # inside of the fourth record
    data[:8] = bytes(8)
    part.path.write_bytes(data + bytes(100))
    part = saved_parts(part.path.parent)[0]
    assert damages(part) == [
        Damaged(starts[0], starts[1] - starts[0]),
        Damaged(starts[3], starts[4] - starts[3]),
    ]
    assert len(bodies(part)) == COUNT // 2 - 2


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part, _ = set_aside(tmp_path)
    command = ["store", "diverged"]
    assert run(*command, "list", str(tmp_path), "-o", "json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["file"], listed["messages"], listed["damaged_bytes"]) == (part.path.name, COUNT // 2, 0)
    assert run(*command, "show", str(tmp_path), part.path.name, "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["topic"] for each in shown] == ["T"] * (COUNT // 2)
    assert run(*command, "show", str(tmp_path), "x.log") != 0
    assert "there is no part that was set aside 'x.log'" in capsys.readouterr().err
