"""Figures over time of the console: rings of samples, and who fills them in the background."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.base.logs import forget
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.errors import ClientError, NoRoute
from mqspark.message import dlq_topic
from mqspark.protocol.bodies.admin_bodies import TopicOffset
from mqspark.testing import FakeClock
from mqspark_server.console.clusteraccess import ClusterAt, Trouble
from mqspark_server.console.history import sampler, samples
from mqspark_server.console.history.sampler import (
    ALL_LAGS,
    ALL_LETTERS,
    CLUSTER,
    Sampler,
    broker_series,
    group_series,
)
from mqspark_server.console.history.samples import SPANS, History
from mqspark_server.console.rendering import chart

HOUR_STEP_MS = next(iter(SPANS.values())).step_ms
GONE = "127.0.0.1:1"

# --- rings ---


def test_an_hour_has_the_newest_of_each_step_and_a_day_the_largest() -> None:
    history = History()
    for at_ms, value in ((0, 5), (4_000, 9), (9_999, 1), (10_000, 2), (61_000, 3)):
        history.note("a", at_ms, value)
    assert history.columns("a", "hour") == [[9.999, 10, 61], [1, 2, 3]]
    assert history.columns("a", "day") == [[10, 61], [9, 3]]


@pytest.mark.parametrize("span", SPANS)
def test_a_ring_has_so_many_steps(span: str) -> None:
    history, each = History(), SPANS[span]
    for number in range(each.steps + 3):
        history.note("a", number * each.step_ms, number, -number)
    times, ups, downs = history.columns("a", span)
    assert len(times) == each.steps
    assert ups == [float(number) for number in range(3, each.steps + 3)]
    assert downs[-1] == -ups[-1]
    assert times == sorted(times)


def test_what_is_not_known_and_times_without_samples_are_gaps() -> None:
    history = History()
    history.note("a", 0, 1, None)
    history.note("a", samples.GAP_STEPS * HOUR_STEP_MS, None, 2)
    history.note("a", 100 * HOUR_STEP_MS, float("inf"), 3)
    assert history.columns("a", "hour") == [[0, 60, 70, 1000], [1, None, None, None], [None, 2, None, 3]]
    drawn = chart("t", ["x", "y"], history.columns("a", "hour"))
    assert (drawn["count"], drawn["words"]) == (4, "x: 1 now, at most 1; y: 3 now, at most 3")
    assert chart("t", ["x"], [])["count"] == 0


def test_a_clock_that_is_set_back_takes_samples_with_it() -> None:
    history = History()
    for second in (10, 20, 500, 600, 30):
        history.note("a", second * 1000, second)
    assert history.columns("a", "hour") == [[10, 20, 30], [10, 20, 30]]


def test_another_number_of_figures_begins_anew() -> None:
    history = History()
    history.note("a", 0, 1, 2)
    history.note("a", 10_000, 3)
    assert history.columns("a", "hour") == [[10], [3]]
    assert history.columns("b", "hour") == []


def test_series_are_bounded_in_bytes_and_the_least_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    one = History()
    one.note("a", 0, 1)
    monkeypatch.setattr(samples, "MAX_SAMPLES_BYTES", 3 * one.bytes)
    history = History()
    for name in "abc":
        history.note(name, 0, 1)
    history.columns("a", "day")
    history.note("d", 0, 1)
    assert [name for name in "abcd" if history.columns(name, "day")] == ["a", "c", "d"]
    assert history.bytes == 3 * one.bytes
    history.note("x" * 10_000, 0, 1)
    assert history.bytes == 3 * one.bytes


# --- who fills them ---


class Cluster:
    """As an AdminClient answers: masters with their figures, and groups with their lags."""

    def __init__(self, brokers: int = 1, groups: int = 3) -> None:
        self.brokers, self.groups_there = brokers, groups
        self.asked: list[str] = []
        self.is_down = False

    async def cluster_info(self) -> Any:
        table = {
            f"b{number}": SimpleNamespace(cluster="c", broker_addrs={0: f"h:{number}"})
            for number in range(self.brokers)
        }
        return SimpleNamespace(broker_addr_table=table)

    async def broker_runtime_info(self, address: str) -> dict[str, str]:
        self.asked.append(address)
        if self.is_down:
            raise ClientError("down")
        return {"putTps": "2.5 2 2", "getTransferredTps": "5 5 5", "commitLogDiskRatio": "0.25"}

    async def group_names(self) -> list[str]:
        self.asked.append("groups")
        return ["TOOLS_CONSUMER", *(f"g{number:04}" for number in range(self.groups_there))]

    async def group_lag(self, group: str) -> int:
        self.asked.append(group)
        if group == "g0001":
            raise ClientError("it has committed nothing")
        return 10

    async def topic_route(self, topic: str) -> None:
        self.asked.append(f"route of {topic}")
        if topic != dlq_topic("g0002"):
            raise NoRoute(topic)

    async def topic_stats(self, topic: str) -> dict[int, TopicOffset]:
        self.asked.append(topic)
        assert topic == dlq_topic("g0002")
        return {queue: TopicOffset(min_offset=2, max_offset=5 + queue) for queue in range(2)}


def sampler_of(clock: FakeClock, **more: Any) -> Sampler:
    return Sampler(ClusterAt(GONE, ClientOptions(connect_timeout_ms=2_000)), clock, **more)


def take(cluster: Any, one: Sampler) -> None:
    asyncio.run(one.take(cluster))


def test_a_round_has_rates_disks_and_lags() -> None:
    one = sampler_of(FakeClock())
    take(Cluster(brokers=2), one)
    history = one.history
    assert history.columns(CLUSTER, "hour")[1:] == [[5], [10], [0.25]]
    assert history.columns(broker_series("b1"), "hour")[1:] == [[2.5], [5], [0.25]]
    assert history.columns(group_series("g0000"), "day")[1] == [10]
    assert history.columns(group_series("g0001"), "day") == []
    assert history.columns(group_series("TOOLS_CONSUMER"), "day") == []
    assert history.columns(ALL_LAGS, "day")[1] == [20]
    assert history.columns(ALL_LETTERS, "day")[1] == [7]


def test_letters_stay_counted_while_their_groups_are_named_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "REQUESTS_FOR_GROUPS", 1)
    cluster, clock = Cluster(), FakeClock()
    one = sampler_of(clock)
    for _ in range(3):
        take(cluster, one)
        clock.advance(10_000)
    clock.advance(int(1000 * sampler.NAMES_S))
    take(cluster, one)
    assert cluster.asked.count("groups") == 2
    assert one.history.columns(ALL_LETTERS, "hour")[1][-1] == 7


def test_a_group_whose_letters_are_refused_leaves_the_others_their_figures() -> None:
    class Refusing(Cluster):
        async def topic_route(self, topic: str) -> None:
            if topic == dlq_topic("g0000"):
                raise ClientError("no permission")
            await super().topic_route(topic)

    one = sampler_of(FakeClock())
    take(Refusing(), one)
    assert one.history.columns(ALL_LAGS, "day")[1] == [20]
    assert one.history.columns(ALL_LETTERS, "day")[1] == [7]


def test_a_large_cluster_costs_no_more() -> None:
    cluster, clock = Cluster(brokers=500, groups=5_000), FakeClock()
    one = sampler_of(clock)
    rounds = []
    for _ in range(70):
        cluster.asked.clear()
        take(cluster, one)
        rounds.append(list(cluster.asked))
        clock.advance(10_000)
    assert max(map(len, rounds)) <= sampler.MAX_BROKERS + sampler.REQUESTS_FOR_GROUPS + 3
    # One group of each of 64 masters is asked; the names of 5,000 once, and not again within 2,500 s.
    assert [each for asked in rounds for each in asked].count("groups") == 1
    assert [each for asked in rounds for each in asked].count(f"route of {dlq_topic('g0002')}") == 1
    in_turn = [each for asked in rounds for each in asked if each.startswith("g0")]
    assert len(in_turn) == 70
    assert len(set(in_turn)) == sampler.MAX_GROUPS
    # The sum is known when all were asked.
    assert len(one.history.columns(ALL_LAGS, "hour")[0]) == 70 - sampler.MAX_GROUPS + 1


def test_no_broker_answers() -> None:
    cluster, one = Cluster(), sampler_of(FakeClock())
    cluster.is_down = True
    with pytest.raises(Trouble, match="down"):
        take(cluster, one)
    assert one.history.columns(CLUSTER, "hour") == []


def test_a_cluster_that_is_down_is_asked_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []

    async def run() -> None:
        enough = asyncio.Event()

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 6:
                enough.set()
                await asyncio.Event().wait()

        one = sampler_of(FakeClock(), pause=pause)
        one.begin()
        one.begin()
        await enough.wait()
        await one.stop()
        one.begin()  # by a page that was under way
        assert len(asyncio.all_tasks()) == 1

    forget()
    with caplog.at_level(logging.WARNING, "mqspark.console"):
        asyncio.run(run())
    assert pauses == [60, 120, 240, 480, 600, 600]
    lines = [each.getMessage() for each in caplog.records if each.name == "mqspark.console"]
    assert len(lines) == 6
    assert GONE in lines[0]


def pauses_of(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock, take: Any, count: int, watch: bool
) -> list[float]:
    """Between the first rounds, each of which is a call of ``take``."""
    pauses: list[float] = []

    async def run() -> None:
        enough = asyncio.Event()

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            clock.advance(int(seconds * 1000))
            if len(pauses) == count:
                enough.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(Sampler, "take", take)
        one = sampler_of(clock, pause=pause)
        if watch:
            one.watched()
        one.begin()
        await enough.wait()
        await one.stop()

    asyncio.run(run())
    return pauses


def test_rounds_that_take_long_come_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    durations_ms = iter([100, 400, 3_000])

    async def took(self: Sampler, admin: Any) -> None:
        clock.advance(next(durations_ms))

    assert pauses_of(monkeypatch, clock, took, 3, watch=False) == [9.9, 9.6, 30]


def test_a_large_cluster_is_sampled_rarely_unless_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its brokers has a sampler."""
    real = Sampler.take

    async def took(self: Sampler, admin: Any) -> None:
        cluster: Any = Cluster(brokers=500)
        await real(self, cluster)

    assert pauses_of(monkeypatch, FakeClock(), took, 2, watch=False) == [500, 500]
    monkeypatch.setattr(sampler, "WATCHED_FOR_MS", 20_000)
    assert pauses_of(monkeypatch, FakeClock(), took, 4, watch=True) == [10, 10, 500, 500]
