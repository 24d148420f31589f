"""The reader of another process's store: what its broker deletes is let go, also by who reads it right now."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from mqspark.errors import StoreCorrupt
from mqspark.store.tools.reader import StoreReader
from tests.support.store_tools import opened, put_synced
from tests.support.storefiles import segments_of

ROWS = 60


@pytest.fixture
def log(tmp_path: Path) -> list[Path]:
    """The segments of a log with a topic ``T`` of 60 numbers, oldest first."""
    store = opened(tmp_path)
    for number in range(ROWS):
        put_synced(store, "T", 0, b"%04d" % number + bytes(300))
    store.close()
    return segments_of(tmp_path)


def held(directory: Path) -> set[str]:
    """The files of a directory that this process maps or has open, deleted or not."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = {line.split(maxsplit=5)[-1] for line in maps if str(directory) in line}
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the listing's own
    return {Path(path).name.removesuffix(" (deleted)") for path in found if str(directory) in path}


def read(reader: StoreReader) -> int:
    entries = reader.entries("T", 0, 0, ROWS)
    sizes = entries["size"].astype(np.int64)
    return sum(len(piece.places) for piece in reader.pieces(entries["position"], sizes, 1 << 12))


def is_there(reader: StoreReader, position: int) -> bool:
    try:
        return bool(reader.record(position, 4))
    except StoreCorrupt:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("maps", [True, False])
def test_an_idle_reader_lets_go_of_what_was_deleted(tmp_path: Path, log: list[Path], maps: bool) -> None:
    reader = StoreReader(tmp_path, maps=maps)
    assert read(reader) == ROWS
    everything = {path.name for path in log}
    assert held(log[0].parent) == everything
    for _ in range(20):
        reader.let_go_deleted()
    assert held(log[0].parent) == everything, "nothing was deleted"
    log[0].unlink()
    log[1].rename(tmp_path / "moved")
    reader.let_go_deleted()
    assert held(log[0].parent) == everything - {log[0].name, log[1].name}, "one has another name"
    assert held(tmp_path) & {"moved"} == {"moved"}
    with pytest.raises(StoreCorrupt, match="no CommitLog segment"):
        read(reader)


@pytest.mark.parametrize("maps", [True, False])
def test_a_read_that_goes_on_keeps_its_segment_for_a_while(
    tmp_path: Path, log: list[Path], maps: bool
) -> None:
    reader = StoreReader(tmp_path, maps=maps)
    first = int(reader.entries("T", 0, 0, 1)["position"][0])
    assert reader.record(first, 4)
    log[0].unlink()
    looks = 0
    while is_there(reader, first) and looks < 60:
        reader.let_go_deleted()
        looks += 1
    assert 5 <= looks <= 10, "seconds"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_read_that_stalls_loses_its_segment_and_notices(tmp_path: Path, log: list[Path]) -> None:
    reader = StoreReader(tmp_path, maps=True)
    entries = reader.entries("T", 0, 0, ROWS)
    pieces = reader.pieces(entries["position"], entries["size"].astype(np.int64), 1000)
    piece = next(pieces)
    assert piece.segment is not None
    assert bytes(piece.buffer).count(b"0001") == 1
    log[0].unlink()
    for _ in range(4):
        reader.let_go_deleted()
    assert log[0].name not in held(log[0].parent), "although the piece is in use"
    assert not any(piece.buffer), "zeros, no signal"
    with pytest.raises(StoreCorrupt):
        reader.check(piece)
    with pytest.raises(StoreCorrupt):
        next(pieces)


def test_a_segment_that_was_made_again_is_another_one(tmp_path: Path, log: list[Path]) -> None:
    reader = StoreReader(tmp_path, maps=True)
    assert read(reader) == ROWS
    content = log[0].read_bytes()
    log[0].unlink()
    log[0].write_bytes(content)
    for _ in range(4):
        reader.let_go_deleted()
    assert read(reader) == ROWS
