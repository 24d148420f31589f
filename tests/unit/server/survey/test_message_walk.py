"""Messages of many queues as one sequence: in order, without a gap or a repetition, and in bounded steps."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.message import MessageQueue
from mqspark_server.survey import messagesurvey
from mqspark_server.survey.messagesurvey import Walked, Wanted, walk

ALL = Wanted()
QUEUES = [MessageQueue("T", broker, number) for broker in "ab" for number in (0, 1)]


class Cluster:
    """An admin client of queues whose messages were stored at random times, never earlier than the one before."""

    def __init__(self, counts: list[int], seed: int = 1) -> None:
        chance = random.Random(seed)
        self.bounds = {queue: (0, count) for queue, count in zip(QUEUES, counts, strict=True)}
        self.times: dict[MessageQueue, list[int]] = {}
        for queue, (_, count) in self.bounds.items():
            self.times[queue] = sorted(chance.randrange(100) for _ in range(count))
        self.reads = 0

    def arrive(self, queue: MessageQueue, at_ms: int) -> None:
        self.times[queue].append(at_ms)
        self.bounds[queue] = self.bounds[queue][0], len(self.times[queue])

    async def read(
        self, queue: MessageQueue, offset: int, *, max_messages: int, expression: str = "*", **kind: str
    ) -> Any:
        """``expression``: multiples of this offset, as a broker leaves out what a filter does not take."""
        self.reads += 1
        end = min(offset + max_messages, len(self.times[queue]))
        there = [each for each in range(offset, end) if expression == "*" or each % int(expression) == 0]
        messages = [
            SimpleNamespace(
                queue=queue,
                queue_offset=each,
                physical_offset=each,
                store_timestamp_ms=self.times[queue][each],
                store_size_bytes=100,
            )
            for each in there
        ]
        return SimpleNamespace(messages=messages, next_offset=end)

    def walk(
        self, places: dict[MessageQueue, int], most: int, wanted: Wanted = ALL, *, is_back: bool
    ) -> Walked:
        admin: Any = self
        return asyncio.run(walk(admin, self.bounds, places, most, wanted, is_back=is_back))

    @property
    def ends(self) -> dict[MessageQueue, int]:
        return {queue: high for queue, (_, high) in self.bounds.items()}


def ids(walked: Walked) -> list[tuple[MessageQueue, int]]:
    found: list[Any] = walked.messages
    return [(each.queue, each.queue_offset) for each in found]


def times(walked: Walked) -> list[int]:
    return [each.store_timestamp_ms for each in walked.messages]


@pytest.mark.parametrize("is_back", [True, False])
@pytest.mark.parametrize(
    "wanted", [ALL, Wanted("3"), Wanted(accepts=lambda each: each.queue_offset % 3 == 0)]
)
def test_pages_show_everything_once_and_in_order(wanted: Wanted, is_back: bool) -> None:
    cluster = Cluster([57, 0, 31, 90])
    places = cluster.ends if is_back else dict.fromkeys(QUEUES, 0)
    seen: list[tuple[MessageQueue, int]] = []
    at: list[int] = []
    while True:
        page = cluster.walk(places, 20, wanted, is_back=is_back)
        seen += ids(page)
        at += times(page)
        places = page.places
        assert len(page.messages) == 20 or not page.is_more
        if not page.is_more:
            break
    step = 1 if wanted.is_all else 3
    every = [(queue, each) for queue, high in cluster.ends.items() for each in range(0, high, step)]
    assert sorted(seen) == every
    assert at == sorted(at, reverse=is_back)


def test_a_page_stays_whatever_arrives_and_the_way_back_meets_it() -> None:
    cluster = Cluster([40, 40, 40, 40])
    first = cluster.walk(cluster.ends, 20, is_back=True)
    second = cluster.walk(first.places, 20, is_back=True)
    for number in range(50):
        cluster.arrive(QUEUES[number % 4], 1_000 + number)
    assert ids(cluster.walk(first.places, 20, is_back=True)) == ids(second)
    newer = cluster.walk(first.places, 20, is_back=False)
    assert sorted(ids(newer)) == sorted(ids(first))
    newest = cluster.walk(newer.places, 100, is_back=False)
    assert (len(newest.messages), newest.is_more) == (50, False)


def test_what_was_deleted_is_passed_over() -> None:
    cluster = Cluster([40, 40, 0, 0])
    first = cluster.walk(cluster.ends, 20, is_back=True)
    for queue in QUEUES[:2]:
        cluster.bounds[queue] = (39, 40)
    assert cluster.walk(first.places, 20, is_back=True).messages == []
    assert [each for _, each in ids(cluster.walk(dict.fromkeys(QUEUES, 0), 20, is_back=False))] == [39, 39]


def test_a_search_looks_at_so_many_and_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messagesurvey, "MAX_LOOKED_AT", 200)
    cluster = Cluster([1_000, 500, 0, 0])
    rare = Wanted(accepts=lambda each: each.queue_offset == 0)
    places, found, rounds = cluster.ends, list[Any](), 0
    while True:
        page = cluster.walk(places, 20, rare, is_back=True)
        assert page.looked_at <= 200 + 2 * messagesurvey.STEP
        found += ids(page)
        rounds += 1
        places = page.places
        if not page.is_more:
            break
    assert sorted(found) == [(QUEUES[0], 0), (QUEUES[1], 0)]
    assert 6 <= rounds <= 9


def test_large_messages_end_a_walk_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messagesurvey, "MAX_READ_BYTES", 1_000)
    cluster = Cluster([200, 0, 0, 0])
    page = cluster.walk(cluster.ends, 100, Wanted("1"), is_back=True)
    assert (len(page.messages), page.is_more) == (100, True)  # what is read is shown
    assert cluster.reads == 1


def test_few_are_read_of_many_queues() -> None:
    cluster = Cluster([1_000] * 4)
    page = cluster.walk(cluster.ends, 20, is_back=True)
    assert page.looked_at <= 80
