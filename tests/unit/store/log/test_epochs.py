"""The epochs of a log: RocketMQ's epochFileCheckpoint, and where two logs part."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.errors import StoreCorrupt
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import OsFiles
from mqspark.store.log.epochs import Epoch, EpochFile, begin_term, last_common

FILE = "epochFileCheckpoint"


def opened(directory: Path, log_end: int = 1 << 40) -> EpochFile:
    return EpochFile(ConfigFile(directory / FILE, OsFiles()), log_end)


def rocketmq_text(*entries: tuple[int, int]) -> bytes:
    """As CheckpointFile writes it."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in entries)
    return f"{len(entries)}\n{zlib.crc32(lines.encode()) & 0x7FFFFFFF}\n{lines}".encode()


def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    assert epochs.append(1, 0)
    assert epochs.append(7, 123_456)
    assert (tmp_path / FILE).read_bytes() == rocketmq_text((1, 0), (7, 123_456))
    assert opened(tmp_path).entries == ((1, 0), (7, 123_456))


def test_a_file_of_rocketmq_without_a_crc_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"1\n0\n3-17\n")
    assert opened(tmp_path).last == Epoch(3, 17)


@pytest.mark.parametrize(
    "damaged",
    [b"", b"2\n0\n1-0\n", b"1\n5\n1-0\n", b"1\n0\n1-\n", b"2\n0\n2-0\n1-5\n", b"2\n0\n1-9\n2-5\n", b"x"],
)
def test_damage_is_seen_and_the_backup_used(tmp_path: Path, damaged: bytes) -> None:
    epochs = opened(tmp_path)
    epochs.append(1, 0)
    epochs.append(2, 50)
    (tmp_path / FILE).write_bytes(damaged)
    assert opened(tmp_path).entries == ((1, 0), (2, 50)), "the last epoch is in the .bak, too"
    (tmp_path / f"{FILE}.bak").write_bytes(b"x")
    with pytest.raises(StoreCorrupt):
        opened(tmp_path)


def test_a_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    class Full(OsFiles):
        def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
            raise OSError(28, "no space")

    opened(tmp_path).append(1, 0)
    epochs = EpochFile(ConfigFile(tmp_path / FILE, Full()), 1 << 40)
    with pytest.raises(OSError, match="no space"):
        epochs.append(2, 10)
    assert epochs.entries == ((1, 0),)
    assert opened(tmp_path).entries == ((1, 0),)


def test_entries_behind_the_end_of_the_log_do_not_count(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    for entry in ((1, 0), (2, 100), (3, 200)):
        epochs.append(*entry)
    assert opened(tmp_path, 150).entries == ((1, 0), (2, 100))
    assert opened(tmp_path, 200).last_number == 3
    epochs.cut_behind(150)
    assert opened(tmp_path).entries == ((1, 0), (2, 100))


def test_epochs_only_grow(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    assert epochs.append(2, 100)
    assert not epochs.append(2, 200)
    assert not epochs.append(1, 200)
    assert not epochs.append(3, 99)
    assert epochs.append(3, 100)  # the master of epoch 2 stored nothing
    assert [epochs.at(position)[0].number for position in (0, 99, 100, 500)] == [2, 2, 3, 3]


def test_the_beginning_is_forgotten_with_the_log(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    for entry in ((1, 0), (2, 100), (3, 200)):
        epochs.append(*entry)
    epochs.forget_before(99)
    assert [epoch.number for epoch in epochs.entries] == [1, 2, 3]
    epochs.forget_before(100)
    assert [epoch.number for epoch in epochs.entries] == [2, 3]
    epochs.forget_before(10_000)
    assert epochs.entries == ((3, 200),)


def test_a_master_begins_where_its_log_ends(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    begin_term(epochs, 1, 500)
    assert epochs.entries == ((0, 0), (1, 500))  # what was there before controller mode
    begin_term(epochs, 1, 900)
    assert epochs.entries == ((0, 0), (1, 500))  # its process was restarted
    with pytest.raises(StoreCorrupt):
        begin_term(epochs, 0, 900)


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "found"),
    [
        ([(1, 0)], 500, [(1, 0)], 900, ((1, 0), 500)),
        ([(1, 0)], 900, [(1, 0)], 500, ((1, 0), 500)),
        ([(1, 0)], 900, [(1, 0), (2, 500)], 700, ((1, 0), 500)),
        ([(1, 0), (2, 500)], 600, [(1, 0), (3, 400)], 700, ((1, 0), 400)),
        ([(1, 0), (2, 500)], 600, [(1, 0), (2, 500), (3, 550)], 700, ((2, 500), 550)),
        ([(1, 0), (2, 500)], 600, [(1, 0), (2, 400)], 700, ((1, 0), 400)),
        ([(5, 0)], 600, [(6, 0)], 700, None),
        ([], 600, [(6, 0)], 700, None),
    ],
)
def test_where_two_logs_part(
    own: list[tuple[int, int]], own_end: int, other: list[tuple[int, int]], other_end: int, found: object
) -> None:
    pairs = [Epoch(*each) for each in own], [Epoch(*each) for each in other]
    assert last_common(pairs[0], own_end, pairs[1], other_end) == found


@given(st.lists(st.integers(0, 50), max_size=8), st.data())
def test_it_never_says_that_different_bytes_are_the_same(lengths: list[int], data: st.DataObject) -> None:
    """Two logs that share some epochs: each byte is (epoch, position)."""
    shared = data.draw(st.integers(0, len(lengths)))
    history: list[tuple[int, int]] = []
    position = 0
    for number, length in enumerate(lengths[:shared]):
        history.append((number, position))
        position += length
    logs = []
    for parity in (0, 1):  # after the fork, the two have different epochs
        epochs, end = [Epoch(*each) for each in history], position
        for number, length in enumerate(lengths[shared:]):
            epochs.append(Epoch(2 * (shared + number) + 100 + parity, end))
            end += length
        logs.append((epochs, end))

    def owner(log: tuple[list[Epoch], int], at: int) -> int:
        return max(epoch.number for epoch in log[0] if epoch.start <= at)

    found = last_common(*logs[0], *logs[1])
    if found is not None:
        assert all(owner(logs[0], at) == owner(logs[1], at) for at in range(found[1]))
