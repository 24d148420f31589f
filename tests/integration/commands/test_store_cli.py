"""``mqspark store`` as a person runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.commands import Outcome
from tests.support.processes import run_to_end
from tests.support.store_tools import QuickFiles, crash, flush, opened, put


def mqspark(*arguments: object) -> Outcome:
    return commands.mqspark("store", *map(str, arguments))


def in_a_process(*arguments: object) -> Outcome:
    command = [sys.executable, "-m", "mqspark_server.cli", "store", *map(str, arguments)]
    done = run_to_end(command)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """30 messages, stopped cleanly."""
    store = opened(tmp_path / "store", None, QuickFiles())
    for number in range(30):
        put(store, "Orders", number % 2, b"order %d" % number, b"KEYS\x01k%d\x02" % number)
    flush(store)
    store.close()
    return tmp_path / "store"


def damage(directory: Path, at: int = 90) -> None:
    path = directory / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_fsck_of_a_sound_store(directory: Path) -> None:
    done = mqspark("fsck", directory)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "nothing is wrong"
    assert "30 records; 2 queues, 30 entries" in done.out


def test_fsck_of_damage_and_repair(directory: Path) -> None:
    damage(directory)
    done = mqspark("fsck", directory)
    assert done.code == 3
    assert "LOST  log.damaged offset 0:" in done.out
    assert "LOST  queue.lost-record offset 0, Orders/0, queue offset 0:" in done.out
    done = mqspark("fsck", directory, "--repair", "-o", "json")
    report = json.loads(done.out)
    assert (done.code, report["repaired"], report["errors"], report["lost"]) == (3, True, 0, 1)
    assert [finding["kind"] for finding in report["findings"]] == ["log.damaged"]


def test_repair_of_a_store_that_lost_nothing(directory: Path) -> None:
    for path in (directory / "consumequeue").rglob("0*"):
        if path.is_file():
            path.unlink()
    assert mqspark("fsck", directory).code == 3
    done = mqspark("fsck", directory, "--repair")
    assert done.code == 0, done.out
    assert mqspark("fsck", directory).out.endswith("nothing is wrong\n")


def test_rebuild(directory: Path) -> None:
    done = mqspark("rebuild", directory)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("30 records: 2 queues with 30 entries (0 for lost records), 1 index files")
    assert not (directory / "mqspark.rebuild").exists()
    assert mqspark("fsck", directory).code == 0


def test_stats(directory: Path) -> None:
    done = mqspark("stats", directory, "-o", "json")
    stats = json.loads(done.out)
    assert (stats["messages"], stats["queues"], stats["clean"]) == (30, 2, True)
    text = mqspark("stats", directory).out
    assert "stopped cleanly" in text
    assert "Orders: 30 messages in 2 queues" in text


def test_dump(directory: Path) -> None:
    rows = [json.loads(line) for line in mqspark("dump", "records", directory, "-o", "json").out.splitlines()]
    assert [row["body"] for row in rows] == [f"order {number}" for number in range(30)]
    (row,) = mqspark(
        "dump", "records", directory, "--offset", rows[7]["physicalOffset"], "-n", 1
    ).out.splitlines()
    assert "body=order 7" in row
    queue = mqspark("dump", "records", directory, "--topic", "Orders", "--queue", 1, "--offset", 3, "-n", 2)
    assert [line.rpartition("body=")[2] for line in queue.out.splitlines()] == ["order 7", "order 9"]
    entries = mqspark("dump", "queue", directory, "Orders", 0, "--offset", 14).out.splitlines()
    assert len(entries) == 1
    assert entries[0].startswith("queueOffset=14  physicalOffset=")
    keys = mqspark("dump", "index", directory, "--topic", "Orders", "--key", "k7", "-o", "json").out
    assert json.loads(keys)["physicalOffset"] == rows[7]["physicalOffset"]


def test_errors_are_one_line(directory: Path) -> None:
    done = mqspark("dump", "queue", directory, "Orders", 9)
    assert done.code == 1
    assert done.err == f"mqspark: error: {directory} has no queue 9 of topic 'Orders'\n"
    assert mqspark("dump", "records", directory, "--queue", 1).code == 2
    assert mqspark("fsck", directory / "nothing").code == 2


def test_a_store_in_use_is_not_repaired(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "Orders", 0, b"x")
    flush(store)
    try:
        assert "a broker is running on it" in in_a_process("fsck", tmp_path).out
        done = in_a_process("rebuild", tmp_path)
        assert done.code == 1
        assert "is in use by process" in done.err
        assert len(done.err.splitlines()) == 1
    finally:
        crash(store)


def test_a_queue_file_of_another_length_is_no_hindrance(directory: Path) -> None:
    (directory / "consumequeue" / "Orders" / "0" / f"{0:020d}").write_text("y\n")
    (directory / "consumequeue" / "Orders" / "0" / "notes.txt").write_text("mine")
    done = mqspark("fsck", directory)
    assert done.code == 3
    assert "ERROR queue.behind offset 0, Orders/0, queue offset 0" in done.out
    assert mqspark("rebuild", directory).out.startswith("30 records: 2 queues with 30 entries")
    assert mqspark("fsck", directory).code == 0


def test_a_file_between_the_segments_is_named(directory: Path) -> None:
    path = directory / "commitlog" / f"{500:020d}"
    path.write_bytes(b"x")
    done = mqspark("fsck", directory)
    assert (done.code, done.err) == (3, "")
    assert f"ERROR log.misplaced-file {path} does not belong" in done.out
    assert "30 records; 2 queues, 30 entries" in done.out


@pytest.mark.parametrize(
    ("command", "options", "cut"),
    [
        ("rebuild", (), "in a record"),
        ("rebuild", (), "between records"),
        ("rebuild", (), "unclean"),
        ("fsck", ("--repair",), "in a record"),
    ],
)
def test_a_log_that_was_cut_is_told(
    directory: Path, command: str, options: tuple[str, ...], cut: str
) -> None:
    log = directory / "commitlog" / f"{0:020d}"
    ends = [
        json.loads(line)["physicalOffset"]
        for line in mqspark("dump", "records", directory, "-o", "json").out.splitlines()
    ]
    size = log.stat().st_size
    end = len(log.read_bytes().rstrip(b"\0"))
    torn = 8 if cut == "in a record" else 0
    content = log.read_bytes()[: ends[20] + torn]
    log.write_bytes(content if cut == "unclean" else content.ljust(size, b"\0"))
    if cut == "unclean":
        (directory / "abort").touch()
    done = mqspark(command, directory, *options)
    assert (done.code, done.err) == (3, ""), done.out
    assert f"{end - ends[20]} bytes known from its checkpoint and queues are missing" in done.out
    assert "with them 10 entries of queues" in done.out
    if command == "rebuild":
        assert done.out.startswith("20 records: 2 queues with 30 entries (10 for lost records)")
        assert (f"cut at offset {ends[20]}: {torn} bytes that are not a record" in done.out) == bool(torn)
    else:
        assert f"LOST  log.cut offset {ends[20]}:" in done.out
    assert mqspark(command, directory, *options).code == 0, "what is left is sound"


def test_a_tail_that_a_crash_tore_is_told_and_no_fault(directory: Path) -> None:
    log = directory / "commitlog" / f"{0:020d}"
    end = len(log.read_bytes().rstrip(b"\0"))
    with log.open("r+b") as file:
        file.seek(end)
        file.write(b"torn")
    done = mqspark("rebuild", directory)
    assert (done.code, f"cut at offset {end}: 4 bytes" in done.out) == (3, True), "it had stopped cleanly"
    with log.open("r+b") as file:
        file.seek(end)
        file.write(b"torn")
    (directory / "abort").touch()
    done = mqspark("rebuild", directory)
    assert (done.code, f"cut at offset {end}: 4 bytes" in done.out) == (0, True)
