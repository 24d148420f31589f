"""Generations of compacted queues on disks that lose power or fail: one whole generation is served, never a mix."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mqspark.store.compaction.compacted import (
    CompactedQueues,
    Current,
    GenerationWriter,
    publish,
    read_current,
)
from mqspark.store.disk.files import FileLayer
from tests.crash.disk import MemoryFiles, Power, RecordedFiles
from tests.support.store_tools import FaultyFiles, TestClock, opened, put

ROOT = Path("/disk")
DIRECTORY = ROOT / "mqspark.compacted" / "T" / "0"
IMAGES_PER_MOMENT = 100


def records(generation: int) -> list[bytes]:
    return [b"%d/%d " % (generation, number) * 200 for number in range(generation + 1)]


def compact(files: FileLayer, directory: Path, number: int) -> None:
    """What the job does with one queue."""
    writer = GenerationWriter(directory, f"next-{number}", files)
    for offset, record in enumerate(records(number)):
        writer.append(record, offset, 0)
    writer.finish()
    files.rename(writer.log_path, directory / f"{number}.log")
    files.rename(writer.queue_path, directory / f"{number}.queue")
    publish(directory, Current(number, number + 1, writer.messages, writer.size_bytes), files)


def served(files: FileLayer, root: Path = ROOT) -> list[bytes] | None:
    queues = CompactedQueues(root, files, TestClock().monotonic_ms)
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
    store.commit()
    compact(files, tmp_path / "mqspark.compacted" / "T" / "0", 1)
    files.fail(verb, errno.EIO, for_ever=False)
    with pytest.raises(OSError, match="Input/output error"):
        store.get("T", 0, 0, 10, 1 << 20)
    assert [bytes(each) for each in store.get("T", 0, 0, 10, 1 << 20).buffers] == records(1)
    store.close()


def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    files = RecordedFiles(ROOT)
    compact(files, DIRECTORY, 1)
    queues = CompactedQueues(ROOT, files, TestClock().monotonic_ms)
    assert queues.begins("T", 0)
    queues.forget("T")
    assert files.names(DIRECTORY.parent.parent) == []
