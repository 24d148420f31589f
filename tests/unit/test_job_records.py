"""The state directory of the job server: locks, states, history."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqspark_server.scheduler.jobprocess import finished
from mqspark_server.scheduler.jobrecords import JobDirectory, JobState, RunRecord
from mqspark_server.scheduler.jobsfile import ScheduledJob


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
