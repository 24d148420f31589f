"""The log read in copied stretches finds what one look at all of it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.message import encode_host
from mqspark.record.record import encode_record
from mqspark.store.disk.files import OsFiles
from mqspark.store.log.commitlog import CommitLog
from mqspark.store.log.logwindow import LogWindow
from mqspark.store.log.scan import read_run
from tests.support.draws import some

HOST = encode_host("127.0.0.1", 10911)
START = SEGMENT_BYTES = 4 << 20  # of the only segment


def log_of(root: Path, bodies: list[bytes], topics: tuple[str, ...] = ("T",)) -> tuple[CommitLog, list[int]]:
    """A log that holds these, where each begins, and where the last of them ends."""
    data, positions = bytearray(), []
    for number, body in enumerate(bodies):
        positions.append(START + len(data))
        data += encode_record(
            topic=topics[number % len(topics)], body=body, properties=b"KEYS\x01k%05d\x02" % number,
            queue_offset=number, physical_offset=START + len(data), born_host=HOST, store_host=HOST,
        )  # fmt: skip
    positions.append(START + len(data))
    (root / f"{START:020d}").write_bytes(data.ljust(SEGMENT_BYTES, b"\0"))
    log = CommitLog(root, OsFiles(), segment_bytes=SEGMENT_BYTES, allocation_step=4096, max_mapped=2)
    log.load()
    return log, positions


def read(log: CommitLog, end: int, window_bytes: int, *, min_records: int = 1) -> list[tuple[int, str]]:
    """Position and topic of every record."""
    window = LogWindow(log, window_bytes)
    position, found = START, []
    while position < end:
        run = window.read_run(log.segments[0], position, end, verify_crc=True, min_records=min_records)
        if run is None:
            break
        topics = [run.topics[index] for index in run.topic_ids.tolist()]
        found += list(zip(run.positions.tolist(), topics, strict=True))
        position = run.end_position
    return found


@pytest.mark.parametrize("window_bytes", some([1000, 4096, 30_000, 1 << 20], 2))
@pytest.mark.parametrize(
    "bodies",
    some(
        [
            [b"b" * 100] * 1000,
            [b"b" * 600] * 1000,
            [b"b" * (number % 7 * 100) for number in range(1000)],
            [b"b" * (100 if number < 500 else 130) for number in range(1000)],
            [b"b" * 100 if number % 40 else b"b" * 700 for number in range(1000)],
            [b""] * 100,
        ],
        3,
    ),
)
def test_windows_of_any_size_find_every_record(
    tmp_path: Path, bodies: list[bytes], window_bytes: int
) -> None:
    topics = ("T", "Topic12", "Topic123", "Topic1234", "A-topic-of-more-than-sixteen")
    log, (*positions, end) = log_of(tmp_path, bodies, topics)
    expected = [(position, topics[number % len(topics)]) for number, position in enumerate(positions)]
    assert read(log, end, window_bytes) == expected
    # A limit in the middle of the last record leaves it out.
    assert read(log, end - 1, window_bytes) == expected[:-1]


@pytest.mark.parametrize("size", [100, 600])
def test_a_damaged_body_among_equal_ones_ends_the_run(tmp_path: Path, size: int) -> None:
    log, (*positions, end) = log_of(tmp_path, [bytes([number % 250]) * size for number in range(3000)])
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[positions[1700] - START + 88 + size - 1] ^= 1
    path.write_bytes(data)
    found = read(log, end, 1 << 20)
    assert [position for position, _ in found] == positions[:1700]


def test_a_record_longer_than_the_window_is_left_to_who_asks(tmp_path: Path) -> None:
    log, (*positions, end) = log_of(tmp_path, [b"b" * 10] * 50 + [b"b" * 5000] + [b"b" * 10] * 50)
    assert [position for position, _ in read(log, end, 4096)] == positions[:50]
    run = read_run(log.view(log.segments[0]), 0, end - START, START, verify_crc=True)
    assert run is not None
    assert run.positions.tolist() == positions


def test_too_few_records_are_not_worth_a_run(tmp_path: Path) -> None:
    log, (*_, end) = log_of(tmp_path, [b"b" * 10] * 31)
    assert read(log, end, 1 << 20, min_records=32) == []
