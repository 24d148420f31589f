"""The state directory of the job server: locks, states, history."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from mqspark_server.scheduler import jobrecords
from mqspark_server.scheduler.jobprocess import finished
from mqspark_server.scheduler.jobrecords import JobDirectory, JobState, RunRecord
from mqspark_server.scheduler.jobsfile import ScheduledJob
from tests.support.pace import ProcessorTime


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    made = JobDirectory(tmp_path / "state", 4_096)
    made.make()
    return made


def record(number: int, job: str = "a") -> RunRecord:
    return RunRecord(job, "archive", "ok", number, 1, number, number + 1)


def test_a_lock_excludes_also_its_own_process(directory: JobDirectory) -> None:
    assert not directory.is_locked("a")
    fd = directory.lock("a")
    assert fd is not None
    assert directory.is_locked("a")
    assert directory.lock("a") is None
    other = directory.lock("b")
    assert other is not None
    os.close(fd)
    os.close(other)
    assert not directory.is_locked("a")


def test_a_history_is_bounded_and_keeps_the_newest(directory: JobDirectory) -> None:
    for number in range(500):
        directory.add_to_history(record(number, "ab"[number % 2]))
    assert (directory.path / "history.jsonl").stat().st_size <= 4_096
    found = directory.history()
    assert [each.due_ms for each in found] == list(range(499, 499 - len(found), -1))
    assert 10 < len(found) <= 100
    assert [each.due_ms for each in directory.history("a", 2)] == [498, 496]


def test_a_line_that_was_cut_costs_no_other(directory: JobDirectory) -> None:
    directory.add_to_history(record(1))
    with (directory.path / "history.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(record(2))[:20])
    for number in (3, 4):
        directory.add_to_history(record(number))
    assert [each.due_ms for each in directory.history()] == [4, 3, 1]


def test_a_history_in_pages(tmp_path: Path) -> None:
    """Read from its end: a page of a large history reads its last part alone."""
    directory = JobDirectory(tmp_path, 64 << 20)
    directory.make()
    line = msgspec.json.encode(replace(record(0), summary={"x": "y" * 10_000}))
    with (tmp_path / "history.jsonl").open("wb") as file:
        for number in range(2_000):
            file.write(line.replace(b'"finished_ms":1', b'"finished_ms":%d' % (number + 1)) + b"\n")
    first = directory.runs(limit=3)
    assert [each.finished_ms for each in first.items] == [2_000, 1_999, 1_998]
    second = directory.runs(limit=3, after=first.next)
    assert [each.finished_ms for each in second.items] == [1_997, 1_996, 1_995]
    large = directory.runs(limit=1_000)
    assert len(large.items) == jobrecords.PAGE_BYTES // len(line)
    assert directory.runs(after="of a run that has left").items == []
    tracemalloc.start()
    directory.runs(limit=3)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    every: list[int] = []
    after = None
    while page := directory.runs(limit=700, after=after, most_bytes=64 << 20):
        every += [each.finished_ms for each in page.items]
        if (after := page.next) is None:
            break
    assert every == list(range(2_000, 0, -1))


def test_a_line_without_an_end_is_left_out(directory: JobDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobrecords, "MAX_LINE_BYTES", 500)
    monkeypatch.setattr(jobrecords, "BLOCK_BYTES", 100)
    directory.add_to_history(record(1))
    with (directory.path / "history.jsonl").open("ab") as file:
        file.write(b"x" * 2_000 + b"\n")
    directory.add_to_history(record(2))
    assert [each.due_ms for each in directory.history()] == [2, 1]
    assert directory.runs(limit=1, after=directory.runs(limit=1).next).next is None


def test_damage_costs_its_line_alone(directory: JobDirectory) -> None:
    directory.add_to_history(record(1))
    with (directory.path / "history.jsonl").open("ab") as file:
        file.write(b"\xff{half\n\n[]\n")
    directory.add_to_history(record(2))
    assert [each.due_ms for each in directory.history()] == [2, 1]
    (directory.path / "jobs" / "a.json").write_bytes(b"{")
    assert directory.load("a") == JobState()
    directory.save("a", JobState(taken_ms=5))
    assert directory.load("a").taken_ms == 5


@pytest.mark.parametrize("output", [b"", b"no json", b"[1]", b"[" * 100_000, b"\xff\xfe"])
def test_output_that_is_no_summary(directory: JobDirectory, output: bytes) -> None:
    assert directory.summary("a") == {}
    directory.output("a").write_bytes(output)
    assert directory.summary("a") == {}
    directory.output("a").write_bytes(output + b'\n{"ok": true}\n')
    assert directory.summary("a") == {"ok": True}


def test_the_last_word_of_a_job(directory: JobDirectory) -> None:
    assert directory.last_error("a") == ""
    directory.errors("a").write_bytes(b"x" * 5_000 + b"\nit failed\n\n")
    assert directory.last_error("a") == "it failed"


def test_secrets_in_what_a_job_says_are_not_kept(directory: JobDirectory) -> None:
    job = ScheduledJob(name="a", run="archive")
    said = b'{"ok": false, "error": "s3://key:secret@bucket is away", "to": "s3://key:secret@bucket"}\n'
    directory.output("a").write_bytes(said)
    found = finished(job, JobState(attempt=1), directory, 1_000, 1)
    assert "secret" not in str(found)
    assert found.error == "s3://***@bucket is away"


def test_a_job_that_prints_what_is_no_text_is_noted(directory: JobDirectory) -> None:
    """Its state could not be written then, and no job would ever be started again."""
    job = ScheduledJob(run="archive", name="a")
    directory.output("a").write_bytes(b'{"ok": true, "x": "\\ud800\\u001b[2J", "\\udfff": 1}\n')
    record = finished(job, JobState(running_since_ms=1), directory, 2, 0)
    assert record.outcome == "ok"
    assert record.summary["x"] == "\\ud800\\x1b[2J"
    assert directory.load("a").last == record
    assert directory.history() == [record]


def test_an_error_that_is_long_and_full_of_secrets_costs_little(directory: JobDirectory) -> None:
    job = ScheduledJob(run="archive", name="a")
    error = "secret" * 5_000
    directory.output("a").write_bytes(msgspec.json.encode({"ok": False, "error": error}) + b"\n")
    with ProcessorTime() as cost:
        finished(job, JobState(running_since_ms=1, attempt=1), directory, 2, 1)
    assert cost.seconds < 0.5


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"last": "\xff"}', b'{"pid": "\xc3"}', b"[" * 100_000, b"\xff"]
)
def test_a_damaged_state_is_a_new_one(directory: JobDirectory, content: bytes) -> None:
    (directory.path / "jobs" / "a.json").write_bytes(content)
    assert directory.load("a") == JobState()
