"""The streaming reader as Spark's runner calls it, without Spark: a stand-in for the cluster moves as the test says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from mqspark.arrow.cluster.cluster_queues import BrokerPlace, ClusterQueues, DataLoss
from mqspark.arrow.cluster.queueranges import Offsets
from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import MQError, NoRoute
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.reading.stream import ADMISSION_CONTROL, LegacyStreamReader
from pyspark_pymq.reading.stream_offsets import Positions
from tests.support.scripted import Answer, Scripted, route_of, served

if not ADMISSION_CONTROL:
    pytest.skip("Spark 4.1 asks for all there is", allow_module_level=True)

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from pyspark_pymq.reading.stream import StreamReader

Q0, Q1, Q2 = (MessageQueue("T", "a", number) for number in range(3))


class FakeCluster(ClusterQueues):
    def __init__(self, options: ReadOptions, low: Offsets, high: Offsets) -> None:
        super().__init__(options)
        self.low, self.high = low, high
        self.shown: list[Offsets] = []
        self.mean_bytes = 0.0

    def take(self, options: ReadOptions) -> None:
        self._options = options

    def wait_for_routes(self) -> None:
        """Nothing changes here by itself."""

    def mean_record_bytes(self, offsets: Offsets) -> float:
        return self.mean_bytes

    def queues(self) -> dict[MessageQueue, str]:
        return dict.fromkeys(sorted(self.high), "h:1")

    def at_masters(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, str]:
        return dict.fromkeys(queues, "h:1")

    def latest(self, queues: Mapping[MessageQueue, str]) -> Offsets:
        return {queue: self.high[queue] for queue in queues}

    def earliest(self, queues: Mapping[MessageQueue, str]) -> Offsets:
        return {queue: self.low[queue] for queue in queues}

    def place(self, address: str) -> BrokerPlace:
        return BrokerPlace(address)

    def publish(self, offsets: Offsets, published: Offsets) -> None:
        self.shown.append(offsets)


def make(cluster: FakeCluster | None = None, **options: str) -> tuple[StreamReader, FakeCluster]:
    parsed = ReadOptions.parse(
        {"nameserver": "h:1", "topic": "T", "pollTimeoutMs": "0"} | options, streaming=True
    )
    if cluster is None:
        cluster = FakeCluster(parsed, {Q0: 0, Q1: 0}, {Q0: 10, Q1: 10})
    cluster.take(parsed)
    reader = StreamReader(parsed, ("value",))
    reader.connected = cluster
    return reader, cluster


def spark_json(document: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from Spark."""
    loaded: dict[str, Any] = json.loads(json.dumps(document))
    return loaded


def rows_of(partitions: Any) -> dict[MessageQueue, tuple[int, int]]:
    return {each.queue: (each.start, each.end) for partition in partitions for each in partition.task.ranges}


def test_a_topic_that_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, not by pattern: a typing mistake at the start, a loss later."""

    def no_route(_: BlockingClient, topic: str) -> None:
        raise NoRoute(topic, "deleted")

    monkeypatch.setattr(BlockingClient, "route", no_route)
    monkeypatch.setattr(BlockingClient, "routes", lambda *_: {})
    monkeypatch.setattr(BlockingClient, "masters", lambda *_: {"a": "h:1"})
    start = Positions({Q0: 5}).to_json()
    for strict in ("true", "false"):
        base = {"nameserver": "127.0.0.1:1", "topic": "T", "failOnDataLoss": strict}
        reader = StreamReader(ReadOptions.parse(base, streaming=True), ("value",))
        with pytest.raises(NoRoute):
            reader.initialOffset()
        if strict == "true":
            with pytest.raises(NoRoute):
                reader.latestOffset(start, ReadAllAvailable())
        bounded = StreamReader(ReadOptions.parse(base, streaming=True), ("value",))
        bounded.prepareForTriggerAvailableNow()
        if strict == "true":
            with pytest.raises(NoRoute):
                bounded.latestOffset(start, ReadAllAvailable())
        else:
            assert reader.latestOffset(start, ReadAllAvailable()) == start
            assert bounded.latestOffset(start, ReadAllAvailable()) == start


def test_initial_offset_asked_again_and_again() -> None:
    reader, cluster = make()
    first = spark_json(reader.initialOffset())
    cluster.high = {Q0: 12, Q1: 12}
    assert reader.initialOffset() == first
    end = spark_json(reader.latestOffset(first, ReadAllAvailable()))
    assert rows_of(reader.partitions(reader.initialOffset(), end)) == {Q0: (10, 12), Q1: (10, 12)}
    # The driver dies inside batch 0, more arrives, a new process asks again.
    cluster.high = {Q0: 15, Q1: 15}
    again, _ = make(cluster)
    restarted = spark_json(again.initialOffset())
    assert restarted != first
    assert rows_of(again.partitions(restarted, end)) == {Q0: (10, 12), Q1: (10, 12)}
    following = spark_json(again.latestOffset(end, ReadAllAvailable()))
    assert rows_of(again.partitions(end, following)) == {Q0: (12, 15), Q1: (12, 15)}


def test_an_empty_batch_0_holds_the_start_too() -> None:
    reader, cluster = make()
    initial = spark_json(reader.initialOffset())
    end = spark_json(reader.latestOffset(initial, ReadAllAvailable()))
    cluster.high = {Q0: 11, Q1: 10}
    again, _ = make(cluster)
    assert rows_of(again.partitions(spark_json(again.initialOffset()), end)) == {}
    following = spark_json(again.latestOffset(end, ReadAllAvailable()))
    assert rows_of(again.partitions(end, following)) == {Q0: (10, 11)}


def test_nothing_new_is_the_same_text() -> None:
    reader, cluster = make(startingOffsets="earliest")
    end = reader.latestOffset(spark_json(reader.initialOffset()), ReadMaxRows(5))
    for _ in range(3):
        end = spark_json(reader.latestOffset(end, ReadMaxRows(5)))
    assert json.dumps(reader.latestOffset(end, ReadMaxRows(5))) == json.dumps(end)
    assert cluster.shown[-1] == {Q0: 10, Q1: 10}


def test_what_is_finished_is_shown_as_the_groups_offset() -> None:
    reader, cluster = make(startingOffsets="earliest")
    end = spark_json(reader.latestOffset(spark_json(reader.initialOffset()), ReadMaxRows(6)))
    assert cluster.shown == [{Q0: 0, Q1: 0}]
    reader.commit(end)
    assert cluster.shown[-1] == {Q0: 3, Q1: 3}


def test_limits_are_those_of_the_trigger() -> None:
    reader, _ = make(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 4
    initial = spark_json(reader.initialOffset())
    assert reader.latestOffset(initial, limit)["q"] == {"T": {"a:0": 2, "a:1": 2}}
    # Trigger.Once says that limits do not count.
    assert reader.latestOffset(initial, ReadAllAvailable())["q"] == {"T": {"a:0": 10, "a:1": 10}}
    assert isinstance(make()[0].getDefaultReadLimit(), ReadAllAvailable)


def test_available_now_fixes_its_target() -> None:
    reader, cluster = make()
    reader.prepareForTriggerAvailableNow()
    cluster.high = {Q0: 20, Q1: 20, Q2: 5}
    cluster.low[Q2] = 0
    # "latest" is later than the target here: nothing to read, and nothing lost.
    initial = spark_json(reader.initialOffset())
    assert json.dumps(reader.latestOffset(initial, ReadAllAvailable())) == json.dumps(initial)


def test_a_new_queue_begins_at_its_first_message() -> None:
    reader, cluster = make()
    end = spark_json(reader.latestOffset(spark_json(reader.initialOffset()), ReadAllAvailable()))
    cluster.high[Q2], cluster.low[Q2] = 7, 3
    following = spark_json(reader.latestOffset(end, ReadAllAvailable()))
    cluster.low[Q2] = 5  # retention goes on: the replay must still say where the batch began
    with pytest.raises(DataLoss, match=r"offsets 3 to 5 have expired.*failOnDataLoss=false"):
        reader.partitions(end, following)
    tolerant, _ = make(cluster, failOnDataLoss="false")
    assert rows_of(tolerant.partitions(end, following)) == {Q2: (5, 7)}


def test_a_broker_that_is_away_keeps_its_place() -> None:
    reader, cluster = make(startingOffsets="earliest")
    end = spark_json(reader.latestOffset(spark_json(reader.initialOffset()), ReadMaxRows(6)))
    gone = cluster.high.pop(Q1)
    following = spark_json(reader.latestOffset(end, ReadAllAvailable()))
    assert following["q"] == {"T": {"a:0": 10, "a:1": 3}}
    cluster.high[Q1] = gone
    back = spark_json(reader.latestOffset(following, ReadAllAvailable()))
    assert rows_of(reader.partitions(following, back)) == {Q1: (3, 10)}


def test_a_queue_that_ends_before_what_was_read() -> None:
    reader, cluster = make(startingOffsets="earliest")
    end = spark_json(reader.latestOffset(spark_json(reader.initialOffset()), ReadAllAvailable()))
    cluster.high[Q0] = 4
    with pytest.raises(DataLoss, match=r"created again.*failOnDataLoss=false"):
        reader.latestOffset(end, ReadAllAvailable())
    tolerant, _ = make(cluster, failOnDataLoss="false")
    following = spark_json(tolerant.latestOffset(end, ReadAllAvailable()))
    assert rows_of(tolerant.partitions(end, following)) == {Q0: (0, 4)}


def test_a_negative_range_is_an_error() -> None:
    reader, _ = make()
    end = spark_json(reader.initialOffset())
    backwards = {"q": {"T": {"a:0": 9, "a:1": 10}}, "v": 1}
    with pytest.raises(MQError, match="before its start 10"):
        reader.partitions(end, backwards)


def test_spark_4_1_asks_without_a_start() -> None:
    options = ReadOptions.parse({"nameserver": "h:1", "topic": "T", "pollTimeoutMs": "0"}, streaming=True)
    cluster = FakeCluster(options, {Q0: 0, Q1: 0}, {Q0: 10, Q1: 10})
    reader = LegacyStreamReader(options, ("value",))
    reader.connected = cluster
    initial = spark_json(reader.initialOffset())
    cluster.high[Q0] = 12
    end = spark_json(reader.latestOffset())
    assert rows_of(reader.partitions(initial, end)) == {Q0: (10, 12)}
    # A new process with batches in its checkpoint: initialOffset is not asked.
    cluster.high = {Q0: 13, Q1: 10, Q2: 2}
    cluster.low[Q2] = 1
    again = LegacyStreamReader(options, ("value",))
    again.connected = cluster
    following = spark_json(again.latestOffset())
    assert rows_of(again.partitions(end, following)) == {Q0: (12, 13), Q2: (1, 2)}
    cluster.high[Q1] = 11
    assert rows_of(again.partitions(following, spark_json(again.latestOffset()))) == {Q1: (10, 11)}


def test_spark_4_1_keeps_a_start_at_latest() -> None:
    options = ReadOptions.parse({"nameserver": "h:1", "topic": "T", "pollTimeoutMs": "0"}, streaming=True)

    def process(high: int) -> LegacyStreamReader:
        reader = LegacyStreamReader(options, ("value",))
        reader.connected = FakeCluster(options, {Q0: 0}, {Q0: high})
        return reader

    # The end of batch 0 is asked for before its start.
    fresh = process(10)
    end = spark_json(fresh.latestOffset())
    assert rows_of(fresh.partitions(spark_json(fresh.initialOffset()), end)) == {}
    # Killed inside batch 0: it begins where it did, however much came meanwhile.
    again = process(15)
    for _ in range(2):  # Spark asks more than once
        assert rows_of(again.partitions(spark_json(again.initialOffset()), end)) == {}
    assert rows_of(again.partitions(end, spark_json(again.latestOffset()))) == {Q0: (10, 15)}
    # Stopped after the empty batch 0: what came meanwhile is the next batch.
    later = process(20)
    assert rows_of(later.partitions(end, spark_json(later.latestOffset()))) == {Q0: (10, 20)}


def test_little_waits_for_more_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("pyspark_pymq.reading.stream.time.monotonic", lambda: now)
    monkeypatch.setattr("pyspark_pymq.reading.stream.time.sleep", lambda seconds: None)
    reader, cluster = make(minOffsetsPerTrigger="6", maxTriggerDelay="30s", pollTimeoutMs="0")
    assert reader.getDefaultReadLimit() == ReadMinRows(6)
    limit = reader.getDefaultReadLimit()
    # The first batch is recorded at once: its start has to survive.
    end = spark_json(reader.latestOffset(spark_json(reader.initialOffset()), limit))
    cluster.high = {Q0: 13, Q1: 12}
    assert spark_json(reader.latestOffset(end, limit)) == end
    now += 29
    assert spark_json(reader.latestOffset(end, limit)) == end
    now += 2
    late = spark_json(reader.latestOffset(end, limit))
    assert rows_of(reader.partitions(end, late)) == {Q0: (10, 13), Q1: (10, 12)}
    cluster.high = {Q0: 16, Q1: 15}
    enough = spark_json(reader.latestOffset(late, limit))
    assert rows_of(reader.partitions(late, enough)) == {Q0: (13, 16), Q1: (12, 15)}
    # Trigger.Once takes what there is.
    cluster.high = {Q0: 17, Q1: 15}
    assert spark_json(reader.latestOffset(enough, ReadAllAvailable())) != enough


def test_bytes_become_rows_by_the_size_of_the_next_messages() -> None:
    reader, cluster = make(startingOffsets="earliest", maxBytesPerTrigger="1k")
    cluster.mean_bytes = 256.0
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(1024)
    start = spark_json(reader.initialOffset())
    end = spark_json(reader.latestOffset(start, limit))
    assert rows_of(reader.partitions(start, end)) == {Q0: (0, 2), Q1: (0, 2)}
    cluster.mean_bytes = 5000.0
    following = spark_json(reader.latestOffset(end, limit))
    assert rows_of(reader.partitions(end, following)) == {Q0: (2, 3), Q1: (2, 3)}


def test_a_limit_does_not_count_what_has_expired() -> None:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "4", "failOnDataLoss": "false"}
    reader, cluster = make(None, **options)
    limit = reader.getDefaultReadLimit()
    start = spark_json(reader.initialOffset())
    cluster.low, cluster.high = {Q0: 1_000_000, Q1: 500}, {Q0: 1_000_010, Q1: 500}
    end = spark_json(reader.latestOffset(start, limit))
    assert end["q"] == {"T": {"a:0": 1_000_004, "a:1": 500}}
    assert rows_of(reader.partitions(start, end)) == {Q0: (1_000_000, 1_000_004)}
    # By bytes, too: the size is that of messages that are there.
    sampled: list[Offsets] = []
    reader, cluster = make(cluster, maxBytesPerTrigger="1k", failOnDataLoss="false")
    cluster.mean_record_bytes = lambda offsets: sampled.append(offsets) or 256.0  # type: ignore[method-assign,func-returns-value]
    end = spark_json(reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert sampled == [{Q0: 1_000_000, Q1: 500}]
    assert rows_of(reader.partitions(start, end)) == {Q0: (1_000_000, 1_000_004)}
    # With failOnDataLoss the loss is an error, not a batch that passes over it.
    strict, _ = make(cluster, maxOffsetsPerTrigger="4")
    with pytest.raises(DataLoss, match="have expired"):
        strict.partitions(start, spark_json(strict.latestOffset(start, limit)))


class Forgetful(BlockingClient):
    """Knows no route until ``back`` look-ups have failed."""

    def __init__(self, registered: set[str], back: int) -> None:
        super().__init__("h:1", retry_ms=60_000, sleep=lambda _: None)
        self.registered, self.left = registered, back

    def route(self, topic: str) -> TopicRoute:
        self.left -= 1
        if self.left >= 0:
            raise NoRoute(topic, "away")
        brokers = [BrokerData(cluster="c", broker_name="a", broker_addrs={0: "h:2"})]
        queues = [QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2, perm=6)]
        return TopicRoute.of(topic, TopicRouteData(broker_datas=brokers, queue_datas=queues))

    def routes(self, topics: Sequence[str]) -> dict[str, TopicRoute]:
        return {}

    def masters(self, topics: Iterable[str] = ()) -> dict[str, str]:
        return dict.fromkeys(self.registered, "h:2")


def test_a_topic_without_a_route_is_waited_for_while_its_broker_is_away() -> None:
    options = ReadOptions.parse({"nameserver": "h:1", "topic": "T"}, streaming=True)
    away = ClusterQueues(options, client=Forgetful(set(), 5))
    away.has_begun([Q0])
    assert set(away.queues()) == {Q0, Q1}
    # Its brokers are there: it was deleted. And a new topic is misspelt.
    for registered, begun in (({"a", "b"}, [Q0]), (set(), [])):
        there = ClusterQueues(options, client=Forgetful(registered, 5))
        there.has_begun(begun)
        with pytest.raises(NoRoute):
            there.queues()
    # Its master registers between the two requests.
    back = ClusterQueues(options, client=Forgetful({"a"}, 1))
    back.has_begun([Q0])
    assert set(back.queues()) == {Q0, Q1}


def test_a_topic_is_waited_for_while_a_new_name_server_knows_only_a_slave_of_it() -> None:
    """A name server learns topics from masters."""
    looks = itertools.count()

    def script(command: Command) -> Answer:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            slave = BrokerData(cluster="c", broker_name="a", broker_addrs={1: "127.0.0.1:3"})
            return 0, None, encode_body(ClusterInfo(broker_addr_table={"a": slave}))
        if next(looks) < 4:
            return ResponseCode.TOPIC_NOT_EXIST, None, b""
        return 0, None, route_of({"a": "127.0.0.1:2"}, queues=2)

    server = Scripted(script)
    with served(server):
        client = BlockingClient(server.address, retry_ms=60_000, sleep=lambda _: None)
        options = ReadOptions.parse({"nameserver": server.address, "topic": "T"}, streaming=True)
        cluster = ClusterQueues(options, client=client)
        cluster.has_begun([Q0])
        assert set(cluster.queues()) == {Q0, Q1}
        client.close()


@pytest.mark.parametrize(
    "selection",
    [{"topic": "Other"}, {"topicPattern": "O.*"}, {"assign": '{"Other": [0]}'}],
    ids=lambda selection: min(selection),
)
def test_a_checkpoint_of_another_topic_is_refused(selection: dict[str, str]) -> None:
    checkpoint = spark_json(make()[0].initialOffset())
    other = MessageQueue("Other", "a", 0)
    options = {"nameserver": "h:1", "pollTimeoutMs": "0", **selection}
    strict = ReadOptions.parse(options, streaming=True)
    cluster = FakeCluster(strict, {other: 0}, {other: 5})
    reader = StreamReader(strict, ("value",))
    reader.connected = cluster
    for _ in range(2):
        with pytest.raises(
            DataLoss, match=r"has the progress of topic 'T', .* a checkpointLocation of its own\. Set fail"
        ):
            reader.latestOffset(checkpoint, ReadAllAvailable())
    assert cluster.shown == [], "nothing is published for the group"
    loose = ReadOptions.parse(options | {"failOnDataLoss": "false"}, streaming=True)
    cluster.take(loose)
    reader = StreamReader(loose, ("value",))
    reader.connected = cluster
    end = Positions.from_json(spark_json(reader.latestOffset(checkpoint, ReadAllAvailable())))
    assert (end.offsets[other], end.begun[other]) == (5, 0)


def test_more_topics_than_in_the_checkpoint_are_read() -> None:
    checkpoint = spark_json(make()[0].initialOffset())
    options = ReadOptions.parse(
        {"nameserver": "h:1", "topic": "T,Other", "pollTimeoutMs": "0"}, streaming=True
    )
    other = MessageQueue("Other", "a", 0)
    reader = StreamReader(options, ("value",))
    reader.connected = FakeCluster(options, {Q0: 0, Q1: 0, other: 0}, {Q0: 10, Q1: 10, other: 5})
    end = Positions.from_json(spark_json(reader.latestOffset(checkpoint, ReadAllAvailable())))
    assert end.offsets == {Q0: 10, Q1: 10, other: 5}
