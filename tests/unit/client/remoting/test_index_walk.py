"""A look-up goes on where an answer has ended, with brokers of this project and of RocketMQ."""

from __future__ import annotations

import logging

import pytest

from mqspark.client.remoting import indexwalk
from mqspark.client.remoting.indexwalk import EVER_MS, IndexWalk
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.protocol.headers.client_headers import QueryMessageRequestHeader
from mqspark.record.record import decode_records, encode_record

PAGE = 64


class Log:
    """Records with one key, of which a look-up finds the newest PAGE."""

    def __init__(self, times_ms: list[int], *, knows_positions: bool) -> None:
        self.knows_positions = knows_positions
        self.records = [
            (
                200 * number,
                time_ms,
                encode_record(topic="T", body=b"", physical_offset=200 * number, store_timestamp_ms=time_ms),
            )
            for number, time_ms in enumerate(times_ms)
        ]

    def answer(self, header: QueryMessageRequestHeader) -> bytes:
        before = header.mqspark_before if self.knows_positions else None
        found = [
            record
            for position, time_ms, record in self.records
            if header.begin_timestamp <= time_ms // 1000 * 1000 <= header.end_timestamp
            and (before is None or position < before)
        ]
        return b"".join(found[-PAGE:])


def walked(log: Log, begin_ms: int = 0) -> tuple[list[int], int]:
    """The number of each record that was found, in order, and the number of requests."""
    walk = IndexWalk(
        QueryMessageRequestHeader(
            topic="T", key="k", max_num=PAGE, begin_timestamp=begin_ms, end_timestamp=EVER_MS
        ),
        "broker:1",
    )
    found: list[int] = []
    requests = 0
    while walk.header is not None:
        requests += 1
        page = decode_records(walk.take(log.answer(walk.header)))
        found += [each.physical_offset // 200 for each in page]
    assert len(found) == len(set(found))
    return sorted(found), requests


@pytest.mark.parametrize("knows_positions", [True, False])
@pytest.mark.parametrize("count", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5])
def test_all_are_found(count: int, knows_positions: bool) -> None:
    log = Log([1_700_000_000_000 + 100 * number for number in range(count)], knows_positions=knows_positions)
    found, requests = walked(log)
    assert found == list(range(count))
    assert requests <= 3 + 2 * count // PAGE


def test_a_second_with_more_than_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    times_ms = [1_700_000_000_000] * 3 + [1_700_000_001_000] * (2 * PAGE) + [1_700_000_002_000]
    assert walked(Log(times_ms, knows_positions=True))[0] == list(range(len(times_ms)))
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        found, _ = walked(Log(times_ms, knows_positions=False))
    assert (found[:3], found[-1]) == ([0, 1, 2], len(times_ms) - 1), "what is older is found"
    assert "broker:1 has more messages of one second with 'k' than it gives" in caplog.text


def test_the_walk_ends_at_the_first_time() -> None:
    times_ms = [1_700_000_000_000 + 1000 * number for number in range(3 * PAGE)]
    for knows_positions in (True, False):
        found, _ = walked(Log(times_ms, knows_positions=knows_positions), begin_ms=times_ms[100])
        assert found == list(range(100, 3 * PAGE))


def test_an_endless_or_broken_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexwalk, "MAX_PAGES", 3)
    header = QueryMessageRequestHeader(
        topic="T", key="k", max_num=1, begin_timestamp=0, end_timestamp=EVER_MS
    )
    walk = IndexWalk(header, "broker:1")
    for position in (9000, 8000, 7000):
        walk.take(encode_record(topic="T", body=b"", physical_offset=position, store_timestamp_ms=position))
    with pytest.raises(ProtocolError, match="finds no end"):
        walk.take(encode_record(topic="T", body=b"", physical_offset=1, store_timestamp_ms=1))
    with pytest.raises(InvalidMessage):
        IndexWalk(header, "broker:1").take(b"no record")
