"""What is asked of a cluster for commands, pages and charts: rows without a cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.message import MessageQueue
from mqspark_server.survey.brokersurvey import figures_of, totals_of
from mqspark_server.survey.topicsurvey import newest_of, topic_kind

FIRST, SECOND = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


class Log:
    """An admin client of queues that have a message at each offset but ``gone``; it gives at most three at once."""

    def __init__(self, gone: range = range(0)) -> None:
        self.gone = gone
        self.reads: list[tuple[int, int]] = []

    async def read(self, queue: MessageQueue, offset: int, *, max_messages: int) -> Any:
        self.reads.append((queue.queue_id, offset))
        end = offset + min(3, max_messages + 1)  # as brokers may, one more than is asked for
        there = [each for each in range(offset, end) if each not in self.gone]
        return SimpleNamespace(
            messages=[SimpleNamespace(queue_offset=each) for each in there], next_offset=end
        )


def walked(log: Log, bounds: dict[MessageQueue, tuple[int, int]], step: int, most: int = 100) -> list[Any]:
    async def walk() -> list[Any]:
        admin: Any = log
        found: list[Any] = []
        async for some, offsets in newest_of(admin, bounds, step):
            found.append(([each.queue_offset for each in some], offsets))
            if len(found) == most:
                break
        return found

    return asyncio.run(walk())


def test_queues_are_read_from_their_ends() -> None:
    found = walked(Log(), {FIRST: (2, 9), SECOND: (0, 2)}, step=4)
    assert found == [([5, 6, 7, 8], 4), ([2, 3, 4], 3), ([0, 1], 2)]


def test_offsets_without_a_message_count() -> None:
    assert walked(Log(gone=range(1, 8)), {FIRST: (0, 8)}, step=4) == [([], 4), ([0], 4)]


def test_who_has_enough_reads_no_more() -> None:
    log = Log()
    assert len(walked(log, {FIRST: (0, 1_000_000), SECOND: (0, 1_000_000)}, step=3, most=2)) == 2
    assert log.reads == [(0, 999_997), (0, 999_994)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Orders", "normal"),
        ("%RETRY%g", "retry"),
        ("%DLQ%g", "dead letters"),
        ("SCHEDULE_TOPIC_XXXX", "system"),
        ("c_REPLY_TOPIC", "system"),
    ],
)
def test_kinds_of_topics(name: str, kind: str) -> None:
    assert topic_kind(name) == kind


def test_a_broker_that_says_nothing_or_nonsense_has_no_figures() -> None:
    for said in (
        {},
        dict.fromkeys(("putTps", "commitLogDiskRatio", "bootTimestamp", "putLatency99"), "soon"),
    ):
        found = figures_of(said)
        assert {value for key, value in found.items() if key != "active"} == {None}
    said = {
        "putTps": "1.5 2 3",
        "getTransferedTps": "2 3 4",
        "commitLogMinOffset": "3",
        "commitLogMaxOffset": "10",
    }
    found = figures_of(said)
    assert (found["in_tps"], found["out_tps"], found["log_bytes"]) == (1.5, 2, 7)
    silent = {"id": 1, "error": "gone", **figures_of({})}
    totals = totals_of([{"id": 0, "error": "", **found}, silent])
    assert totals == {"answering": 1, "in_tps": 1.5, "out_tps": 2, "disk": None}
