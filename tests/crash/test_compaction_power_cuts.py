"""Generations of compacted queues on disks that lose power or fail: one whole generation is served, never a mix."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.record.record import decode_record, encode_record
from mqspark.store.compaction.compactedqueues import (
    CompactedQueues,
    Current,
    GenerationWriter,
    adopt,
    read_current,
)
from mqspark.store.disk.files import FileLayer
from mqspark.store.tools.compactor import Compactor, CompactReport, CompactTask, TopicToCompact
from tests.crash.disk import MemoryFiles, Power, RecordedFiles
from tests.support.clocks import ManualClock
from tests.support.store_tools import FaultyFiles, flush, opened, put

ROOT = Path("/disk")
DIRECTORY = ROOT / "mqspark.compacted" / "T" / "0"
IMAGES_PER_MOMENT = 100


def records(generation: int) -> list[bytes]:
    return [
        encode_record(topic="T", body=b"%d/%d " % (generation, number) * 200, queue_offset=number)
        for number in range(generation + 1)
    ]


def compact(files: FileLayer, directory: Path, number: int) -> None:
    """What the job does with one queue."""
    writer = GenerationWriter(directory, f"next-{number}", files)
    for offset, record in enumerate(records(number)):
        writer.append(record, offset, 0)
    writer.finish()
    current = Current(number, number + 1, writer.messages, writer.size_bytes)
    adopt(directory, current, writer.log_path, writer.queue_path, files)


def served(files: FileLayer, root: Path = ROOT) -> list[bytes] | None:
    queues = CompactedQueues(root, files, ManualClock().monotonic_ms)
    result = queues.get("T", 0, 0, 100, 1 << 20, None, lambda topic, queue_id: (0, 100))
    return [bytes(each) for each in result.buffers] if result is not None else None


def test_every_power_cut_leaves_one_whole_generation() -> None:
    recording, chance = RecordedFiles(ROOT), random.Random(1)
    for number in (1, 2, 3):
        compact(recording, DIRECTORY, number)
        recording.note(number)
    power, published, seen = Power(recording), 0, set()
    for event in recording.events:
        power.follow(event)
        published = getattr(event, "what", published)
        for choice in power.choices(IMAGES_PER_MOMENT, chance):
            files = MemoryFiles(ROOT, power.image(choice))
            current = read_current(DIRECTORY, files)
            number = current.generation if current is not None else 0
            assert number in (published, published + 1)
            assert served(files) == (records(number) if number else None)
            seen.add(number)
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("verb", ["create", "set_length", "write", "sync", "sync_directory", "rename"])
def test_a_disk_that_fails_leaves_the_generation_before(verb: str) -> None:
    """Each call of a verb once: the job says so, and the next run succeeds."""
    for number in range(20):
        files, left = RecordedFiles(ROOT), [number]
        compact(files, DIRECTORY, 1)
        files.fault = failing(verb, left)
        try:
            compact(files, DIRECTORY, 2)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            files.fault = None
            assert served(files) in (records(1), records(2))
            compact(files, DIRECTORY, 2)
        assert served(files) == records(2)
        if left[0] >= 0:
            break
    assert 0 < number < 20


def failing(verb: str, left: list[int]) -> Callable[[str], None]:
    def fault(called: str) -> None:
        if called == verb:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    return fault


@pytest.mark.parametrize("verb", ["open_read", "map_read"])
def test_what_the_store_serves_of_it_comes_through_its_file_layer(tmp_path: Path, verb: str) -> None:
    """So a failing disk is seen as such, by the read that met it, and the one after reads on."""
    files = FaultyFiles()
    store = opened(tmp_path, None, files)
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    compact(files, tmp_path / "mqspark.compacted" / "T" / "0", 1)
    files.fail(verb, errno.EIO, for_ever=False)
    with pytest.raises(OSError, match="Input/output error"):
        store.reads.get("T", 0, 0, 10, 1 << 20)
    assert [bytes(each) for each in store.reads.get("T", 0, 0, 10, 1 << 20).buffers] == records(1)
    store.close()


def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    files = RecordedFiles(ROOT)
    compact(files, DIRECTORY, 1)
    queues = CompactedQueues(ROOT, files, ManualClock().monotonic_ms)
    assert queues.begins("T", 0)
    queues.forget("T")
    assert files.names(DIRECTORY.parent.parent) == []


def own_compaction(root: Path, files: FileLayer, end: int) -> CompactReport:
    """The broker's own: the log is on this disk, generations on the simulated one."""
    task = CompactTask(str(root), None, end, [TopicToCompact("T")], 1 << 20, 1)
    return Compactor(task, files).run()


def log_of(root: Path) -> tuple[list[int], list[dict[str, bytes]]]:
    """Three positions of a log, and the value of each key there."""
    store, ends, values = opened(root), [], [{}]
    for round_number in range(3):
        values.append(values[-1].copy())
        for number in range(8 + round_number):
            key = f"k{number % (3 + round_number)}"
            body = values[-1][key] = b"%d %d" % (round_number, number)
            put(store, "T", 0, body, f"KEYS\x01{key}\x02".encode())
        flush(store)
        ends.append(store.log.position)
    store.close()
    return ends, values


def values_served(files: FileLayer, root: Path) -> dict[str, bytes]:
    found = [decode_record(each) for each in served(files, root) or []]
    return {message.keys or "": message.body for message in found}


def test_a_power_cut_in_the_brokers_own_compaction_leaves_the_generation_before_or_the_new_one(
    tmp_path: Path,
) -> None:
    ends, values = log_of(tmp_path)
    recording, chance = RecordedFiles(tmp_path), random.Random(2)
    for number, end in enumerate(ends):
        assert own_compaction(tmp_path, recording, end).compacted_to == end
        recording.note(number + 1)
    power, published, seen = Power(recording), 0, set()
    for event in recording.events:
        power.follow(event)
        published = getattr(event, "what", published)
        for choice in power.choices(20, chance):
            files = MemoryFiles(tmp_path, power.image(choice))
            found = values_served(files, tmp_path)
            assert found in values[published : published + 2]
            seen.add(values.index(found))
            if not chance.randrange(20):  # and the next run makes it whole
                own_compaction(tmp_path, files, ends[-1])
                assert values_served(files, tmp_path) == values[-1]
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("verb", ["create", "set_length", "write", "sync", "sync_directory", "rename"])
def test_a_disk_that_fails_under_the_brokers_own_compaction_holds_the_log(tmp_path: Path, verb: str) -> None:
    ends, values = log_of(tmp_path)
    for number in range(20):
        files, left = RecordedFiles(tmp_path), [number]
        own_compaction(tmp_path, files, ends[0])
        files.fault = failing(verb, left)
        report = own_compaction(tmp_path, files, ends[2])
        files.fault = None
        if left[0] >= 0:
            break
        assert values_served(files, tmp_path) in (values[1], values[3])
        if report.failed:
            assert report.compacted_to == 0
            assert "queue T/0" in report.problems[0]
        assert own_compaction(tmp_path, files, ends[2]).compacted_to == ends[2]
        assert values_served(files, tmp_path) == values[3]
    assert 0 < number < 20
