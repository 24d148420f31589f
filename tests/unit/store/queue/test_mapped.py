"""Which maps of queue files are kept, and which go first."""

from __future__ import annotations

import errno
from mmap import PROT_READ, mmap
from pathlib import Path

import numpy as np
import pytest

from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.mapping import MapBudget
from mqspark.store.queue.mapped import MappedFiles

ENTRY = np.dtype([("number", ">i4")])
NAMES = ("a", "b", "c", "d")


class Appender:
    def __init__(self) -> None:
        self.tail_used = False
        self.is_mapped = True

    def tail_unmapped(self) -> None:
        self.is_mapped = False


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(np.array([(number,)], ENTRY).tobytes())
    return [str(tmp_path / name) for name in NAMES]


@pytest.fixture
def budget() -> MapBudget:
    return MapBudget(1 << 20)


@pytest.fixture
def maps(budget: MapBudget) -> MappedFiles:
    return MappedFiles(OsFiles(), 3, ENTRY, budget)


def read(maps: MappedFiles, *paths: str) -> None:
    for path in paths:
        assert maps.rows(path, 0, 1)["number"].tolist() == [NAMES.index(Path(path).name)]


def drop_idle(maps: MappedFiles) -> None:
    assert not list(maps.drop_idle())


def test_maps_that_are_idle_go_and_those_read_again_stay(
    maps: MappedFiles, budget: MapBudget, paths: list[str]
) -> None:
    read(maps, *paths[:3])
    drop_idle(maps)
    assert len(maps) == 3, "read until now"
    read(maps, paths[0])
    assert maps.bytes_at(paths[1], 0, 4) == bytes((0, 0, 0, 1))
    drop_idle(maps)
    assert (len(maps), len(budget.unmapped), budget.used_bytes) == (2, 1, 8)
    drop_idle(maps)
    assert (len(maps), len(budget.unmapped), budget.used_bytes) == (0, 3, 0)


def test_all_places_are_taken_by_maps_and_the_least_recently_used_goes_first(
    maps: MappedFiles, budget: MapBudget, paths: list[str]
) -> None:
    read(maps, *paths[:2])
    drop_idle(maps)
    appender = Appender()
    assert maps.tail(paths[2], appender) is not None, "two of three places are taken"
    assert maps.tail(paths[3], Appender()) is None, "no place is left"
    read(maps, paths[0], paths[3])
    assert (len(maps), budget.used_bytes) == (3, 12)
    assert appender.is_mapped, "the idle one went"
    read(maps, paths[1])
    assert (len(maps), budget.used_bytes) == (3, 12)
    assert not appender.is_mapped, "read or written by nobody for longest"


def test_a_tail_in_use_is_not_idle(maps: MappedFiles, paths: list[str]) -> None:
    appender = Appender()
    tail = maps.tail(paths[0], appender)
    for _ in range(3):
        appender.tail_used = True
        drop_idle(maps)
    assert maps.tail(paths[0], appender) is tail
    drop_idle(maps)
    drop_idle(maps)
    assert not appender.is_mapped
    assert len(maps) == 0


def test_an_idle_file_that_was_read_is_mapped_again_to_be_written(
    maps: MappedFiles, budget: MapBudget, paths: list[str]
) -> None:
    read(maps, paths[0])
    drop_idle(maps)
    tail = maps.tail(paths[0], Appender())
    assert tail is not None
    tail[3] = 0
    assert (len(maps), budget.used_bytes) == (1, 4)
    maps.drop(paths[0])
    drop_idle(maps)
    read(maps, paths[1])
    drop_idle(maps)
    maps.drop(paths[1])
    assert (len(maps), budget.used_bytes) == (0, 0)
    read(maps, paths[2])
    drop_idle(maps)
    read(maps, paths[3])
    maps.clear()
    assert (len(maps), budget.used_bytes) == (0, 0)


def test_maps_that_wait_to_be_freed_are_gone_before_a_limit_counts_another(
    maps: MappedFiles, budget: MapBudget, paths: list[str]
) -> None:
    """They are not counted, and take address space."""
    read(maps, paths[0])
    drop_idle(maps)
    drop_idle(maps)
    assert len(budget.unmapped) == 1
    read(maps, paths[1])
    assert (budget.unmapped, budget.used_bytes) == ([], 4)


class ShortFiles(OsFiles):
    """As many maps as there may be."""

    shortages = 0

    def map_read(self, fd: int, length: int) -> mmap:
        if self.shortages:
            self.shortages -= 1
            raise OSError(errno.EMFILE, "too many files")
        return super().map_read(fd, length)


def test_maps_that_wait_to_be_freed_go_before_those_in_use(paths: list[str]) -> None:
    files, budget = ShortFiles(), MapBudget(1 << 62)
    maps = MappedFiles(files, 3, ENTRY, budget)
    read(maps, paths[0])
    drop_idle(maps)
    drop_idle(maps)
    read(maps, paths[1])
    assert len(budget.unmapped) == 1, "without a limit the job frees it"
    files.shortages = 1
    read(maps, paths[2])
    assert (len(maps), budget.unmapped, budget.used_bytes) == (2, [], 8)
    files.shortages = 1
    read(maps, paths[3])
    assert (len(maps), budget.used_bytes) == (2, 8), "nothing waits: the least recently used goes"


def test_a_map_that_could_not_be_advised_is_not_counted(
    maps: MappedFiles, budget: MapBudget, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Map(mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EAGAIN, "no memory")

    monkeypatch.setattr(OsFiles, "map_read", lambda _, fd, length: Map(fd, length, prot=PROT_READ))
    read(maps, paths[0])
    assert (len(maps), budget.used_bytes) == (0, 0), "it was copied"
