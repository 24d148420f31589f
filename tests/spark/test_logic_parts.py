"""Static topics as Spark reads and writes them, while their queues move from broker to broker. Most tests call the
readers as Spark does, without Spark."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from mqspark import AdminClient, Message, Producer
from mqspark.arrow.cluster.cluster_queues import ClusterQueues, DataLoss
from mqspark.arrow.cluster.logic_parts import LogicQueues, parts_of
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.reading import range_fetch
from mqspark.arrow.writing.sendrows import send_rows
from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import BadRoute, BrokerError, ConfigError, MQError, NoRoute
from mqspark.message import MessageQueue, QueueOffset
from mqspark.protocol.bodies.topic_bodies import (
    BrokerData,
    LogicQueueMappingItem,
    QueueData,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from mqspark.testing import Cluster
from pyspark_pymq import WorkQueue
from pyspark_pymq.options import ReadOptions, WriteOptions
from pyspark_pymq.reading.batch import BatchReader
from pyspark_pymq.reading.keyread import KeyReader
from pyspark_pymq.reading.stream import ADMISSION_CONTROL, stream_reader
from tests.support.static_topics import StaticTopicTool
from tests.support.waiting import eventually

if ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

LOGIC = "__syslo__global__"
QUEUES = 2
_numbers = itertools.count()
COLUMNS = ("broker", "partition", "offset", "value")

Rows = list[tuple[str, int, int, int]]

since_4_2 = pytest.mark.skipif(not ADMISSION_CONTROL, reason="Spark 4.1 asks for no limits")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": "4194304"}
    with Cluster(2, store=tmp_path_factory.mktemp("static"), settings=settings) as running:
        yield running


class StaticTopic:
    """A static topic of two queues on the first of two brokers."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.namesrv, self.topic = cluster.namesrv, topic
        masters = {app.config.broker_name: app.address for app in cluster.apps}
        self.first, self.second = masters
        self.tool = StaticTopicTool(cluster.namesrv, masters, topic)
        self.tool.create(QUEUES, self.first)
        self.sent = 0

    def send(self, count: int) -> None:
        """So many numbers to each queue."""
        with Producer(self.namesrv, group="p", send_timeout_ms=20_000) as producer:
            for _ in range(count):
                for number in range(QUEUES):
                    queue = MessageQueue(self.topic, LOGIC, number)
                    producer.send(Message.of(self.topic, b"%d" % self.sent), queue=queue)
                    self.sent += 1

    def options(self, *, streaming: bool = False, **more: str) -> ReadOptions:
        base = {"nameserver": self.namesrv, "topic": self.topic, "pollTimeoutMs": "0"}
        return ReadOptions.parse(base | more, streaming=streaming)

    def batch(self, **more: str) -> Rows:
        return rows_of(BatchReader(self.options(**more), COLUMNS).partitions())

    def committed(self, group: str) -> list[int | None]:
        """As the leaders of the queues answer every client."""
        with AdminClient(self.namesrv) as admin:
            return [
                admin.query_offset(group, MessageQueue(self.topic, LOGIC, number)) for number in range(QUEUES)
            ]


@pytest.fixture
def static(brokers: Cluster) -> Iterator[StaticTopic]:
    made = StaticTopic(brokers, f"Static{next(_numbers)}")
    yield made
    made.tool.close()


def rows_of(partitions: Sequence[Any]) -> Rows:
    found: Rows = []
    for partition in partitions:
        for batch in range_fetch.read_task(partition.task):
            columns = batch.to_pydict()
            values = map(int, columns["value"])
            found += zip(columns["broker"], columns["partition"], columns["offset"], values, strict=True)
    return sorted(found)


def expected(*parts: tuple[int, int]) -> Rows:
    """What ``send`` stores: (logic offset of a part, messages)."""
    rows: Rows = []
    number = 0
    for first, count in parts:
        for offset in range(first, first + count):
            for queue_id in range(QUEUES):
                rows.append((LOGIC, queue_id, offset, number))
                number += 1
    return sorted(rows)


THREE = (0, 10), (10_000, 5), (20_000, 3)


@pytest.fixture(scope="module")
def moved(brokers: Cluster) -> Iterator[StaticTopic]:
    """A topic of three parts."""
    made = StaticTopic(brokers, "Moved")
    made.send(10)
    made.tool.remap(made.second)
    made.send(5)
    made.tool.remap(made.first)
    made.send(3)
    yield made
    made.tool.close()


@pytest.mark.parametrize("local", ["true", "false"])
def test_a_batch_reads_each_part_where_it_is(
    moved: StaticTopic, monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    if local == "true":
        monkeypatch.setattr(range_fetch, "pulled_batches", None)
    else:
        monkeypatch.setattr(range_fetch.OpenPlaces, "store", lambda *_: None)
    assert moved.batch(localRead=local) == expected(*THREE)
    assert moved.batch(localRead=local, minPartitions="7") == expected(*THREE)
    start = {"0": 9, "1": 9_999}
    chosen = moved.batch(
        localRead=local,
        startingOffsets=json.dumps({moved.topic: start}),
        endingOffsets=json.dumps({moved.topic: {"0": 10_001, "1": 20_001}}),
    )
    assert [(queue_id, offset) for _, queue_id, offset, _ in chosen] == [
        *((0, offset) for offset in (9, 10_000)),
        *((1, offset) for offset in (*range(10_000, 10_005), 20_000)),
    ]


def test_a_batch_from_a_time_on(moved: StaticTopic) -> None:
    with AdminClient(moved.namesrv) as admin:
        queue = MessageQueue(moved.topic, LOGIC, 0)
        (message, *_) = admin.read(queue, 10_002).messages
    rows = moved.batch(
        startingTimestamp=str(message.store_timestamp_ms), startingOffsetsByTimestampStrategy="latest"
    )
    found = [offset for _, queue_id, offset, _ in rows if queue_id == 0]
    assert found[-1] == 20_002
    assert 10_002 in found
    assert 0 not in found or message.store_timestamp_ms == 0


@since_4_2
def test_a_stream_follows_its_queues_from_broker_to_broker(static: StaticTopic) -> None:
    options = static.options(streaming=True, startingOffsets="earliest", group="followers")
    reader = stream_reader(options, COLUMNS)
    static.send(10)
    position = json.loads(json.dumps(reader.initialOffset()))
    seen: Rows = []

    def step(limit: Any) -> int:
        nonlocal position, seen
        end = json.loads(json.dumps(reader.latestOffset(position, limit)))
        if end == position:
            return 0
        found = rows_of(reader.partitions(position, end))
        assert rows_of(reader.partitions(position, end)) == found, "a batch that runs again reads the same"
        position, seen = end, seen + found
        return len(found)

    assert step(ReadAllAvailable()) == 20
    static.tool.remap(static.second)
    static.send(5)
    eventually(lambda: step(ReadMaxRows(4)) == 4, "the new part is seen")
    # A limit counts messages, not the gap between the parts.
    assert [step(ReadMaxRows(4)) for _ in range(2)] == [4, 2]
    static.tool.remap(static.first)
    static.send(3)
    # A new process with the same checkpoint.
    reader.stop()
    reader = stream_reader(options, COLUMNS)
    assert step(ReadMaxRows(4)) == 4
    assert step(ReadMaxRows(4)) == 2
    assert step(ReadMaxRows(4)) == 0
    assert sorted(seen) == expected(*THREE)
    assert position["q"] == {static.topic: {f"{LOGIC}:0": 20_003, f"{LOGIC}:1": 20_003}}
    assert static.committed("followers") == [20_003, 20_003]
    reader.stop()


@since_4_2
def test_a_limit_in_the_middle_of_a_part_and_a_group_that_goes_on(moved: StaticTopic) -> None:
    options = moved.options(streaming=True, startingOffsets="earliest", group="halves")
    reader = stream_reader(options, COLUMNS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(24))
    assert sorted(end["q"][moved.topic].values()) == [10_002, 10_002]
    first = rows_of(reader.partitions(start, end))
    reader.commit(end)
    reader.stop()
    assert moved.committed("halves") == [10_002, 10_002]
    rest = moved.batch(group="halves", startingOffsets="group")
    assert sorted(first + rest) == expected(*THREE)
    assert not set(first) & set(rest)


@since_4_2
def test_an_idle_stream_waits_at_the_broker_of_the_last_part(static: StaticTopic) -> None:
    static.send(1)
    static.tool.remap(static.second)
    options = static.options(streaming=True, startingOffsets="latest", pollTimeoutMs="20000")
    reader = stream_reader(options, COLUMNS)
    position = reader.initialOffset()
    assert reader.latestOffset(position, ReadAllAvailable()) == position
    sender = threading.Timer(0.1, static.send, [1])
    sender.start()
    end = reader.latestOffset(position, ReadAllAvailable())
    sender.join()
    assert end != position
    reader.stop()


@pytest.mark.slow(
    "queues move and a broker dies for some ten seconds; fast: test_a_stream_follows_its_queues_from_broker_to_broker"
)
@since_4_2
@pytest.mark.parametrize("local", ["true", "false"])
def test_nothing_is_lost_or_read_twice_while_queues_move_under_load(tmp_path: Path, local: str) -> None:
    with (
        Cluster(2, store=tmp_path, settings={"flushDiskType": "SYNC_FLUSH"}) as cluster,
        ExitStack() as ending,
    ):
        static = StaticTopic(cluster, "Busy")
        stopped = threading.Event()
        ending.callback(static.tool.close)
        sent, failures = [0] * QUEUES, []

        def send(number: int) -> None:
            queue = MessageQueue(static.topic, LOGIC, number)
            try:
                with Producer(static.namesrv, group=f"p{number}", send_timeout_ms=20_000) as producer:
                    while not stopped.is_set():
                        producer.send(Message.of(static.topic, b"%d" % sent[number]), queue=queue)
                        sent[number] += 1
            except BaseException as error:
                failures.append(error)

        options = static.options(streaming=True, startingOffsets="earliest", group="busy", localRead=local)
        reader = stream_reader(options, COLUMNS)
        position = json.loads(json.dumps(reader.initialOffset()))
        seen: Rows = []

        def step() -> bool:
            """A batch; a new process of the query now and then."""
            nonlocal position, reader
            end = json.loads(json.dumps(reader.latestOffset(position, ReadMaxRows(50))))
            if end == position:
                return False
            seen.extend(rows_of(reader.partitions(position, end)))
            position = end
            if len(seen) % 7 == 0:
                reader.stop()
                reader = stream_reader(options, COLUMNS)
            return True

        senders = [threading.Thread(target=send, args=(number,)) for number in range(QUEUES)]
        for sender in senders:
            sender.start()
            ending.callback(sender.join, 60)
        ending.callback(stopped.set)
        for turn, target in enumerate((static.second, static.first, static.second), 1):
            eventually(lambda turn=turn: step() and len(seen) > 150 * turn, "read")
            static.tool.remap(target)
        cluster.kill(0)  # it has earlier parts, and leads nothing
        restarting = threading.Timer(1.0, cluster.restart, [0])
        restarting.start()
        ending.callback(restarting.join)
        eventually(lambda: step() and len(seen) > 800, "read after the last move")
        stopped.set()
        for sender in senders:
            sender.join(60)
        assert failures == []
        eventually(lambda: not step() and len(seen) >= sum(sent), "everything is read")
        for number in range(QUEUES):
            here = [(offset, value) for _, queue_id, offset, value in seen if queue_id == number]
            assert [value for _, value in here] == list(range(sent[number])), "each once, in order"
            assert here == sorted(here)
        assert static.committed("busy") == [
            position["q"][static.topic][f"{LOGIC}:{n}"] for n in range(QUEUES)
        ]
        reader.stop()


def test_rows_are_written_to_queues_that_move(static: StaticTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.arrow.writing.pipeline._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("mqspark.arrow.writing.pipeline._UNSTORED_BYTES", 1_000)
    options = WriteOptions.parse({"nameserver": static.namesrv, "topic": static.topic, "batchBytes": "1k"})

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(30):
            if number in (10, 20):
                static.tool.remap(static.second if number == 10 else static.first)
            texts = [str(value) for value in range(number * 100, number * 100 + 100)]
            yield pa.record_batch(
                {"value": pa.array(texts), "partition": pa.array([int(text) % QUEUES for text in texts])}
            )

    assert send_rows(options, batches(), first_turn=0) == 3000
    rows = static.batch()
    for queue_id in range(QUEUES):
        here = [value for _, queue, _, value in rows if queue == queue_id]
        assert here == list(range(queue_id, 3000, QUEUES)), "each once, in order"
    parts = {offset // 10_000 for _, _, offset, _ in rows}
    assert len(parts) == 3


def test_what_static_topics_cannot_do_is_refused(static: StaticTopic, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^key: a topic is static"):
        KeyReader(static.options(key="k"), COLUMNS).partitions()
    with pytest.raises(ConfigError, match=r"^archive: topic .* is static"):
        static.batch(archive=str(tmp_path))
    options = WriteOptions.parse(
        {
            "nameserver": static.namesrv,
            "topic": static.topic,
            "deliveryGuarantee": "exactly-once",
            "transactionId": "t",
        }
    )
    from pyspark_pymq.writing.exactlyonce import prepare

    with pytest.raises(ConfigError, match=r"^deliveryGuarantee: .* static topic"):
        prepare(options, "t", 0, [pa.record_batch({"value": ["v"]})], first_turn=0)
    # A query that read the queues of the topic before it was static has other offsets.
    cluster = ClusterQueues(static.options(streaming=True))
    cluster.has_begun([MessageQueue(static.topic, static.first, 0)])
    with pytest.raises(MQError, match="became a static topic"):
        cluster.queues()
    cluster.client.close()


@pytest.mark.spark
@pytest.mark.slow(
    "three actions of Spark, two of them queries; fast: test_a_stream_follows_its_queues_from_broker_to_broker"
)
@since_4_2
def test_a_query_of_spark_over_a_remapping(spark: SparkSession, static: StaticTopic, tmp_path: Path) -> None:
    def run() -> list[int]:
        frame = spark.readStream.format("pymq").option("nameserver", static.namesrv)
        frame = frame.option("topic", static.topic).option("group", "sparks")
        frame = frame.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "6").load()
        writer = frame.selectExpr("cast(value as string) value").writeStream.format("text")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.option("path", str(tmp_path / "out")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]

    def values() -> list[int]:
        return sorted(int(row.value) for row in spark.read.text(str(tmp_path / "out")).collect())

    static.send(5)
    assert run() == [6, 4]
    static.tool.remap(static.second)
    static.send(4)
    assert run() == [6, 2]
    assert values() == list(range(18))
    assert static.committed("sparks") == [10_004, 10_004]
    table = spark.read.format("pymq").option("nameserver", static.namesrv).option("topic", static.topic)
    found = table.option("columns", "broker, partition, offset").load().distinct().collect()
    assert sorted(map(tuple, found)) == sorted(
        (LOGIC, queue_id, offset)
        for queue_id in range(QUEUES)
        for offset in (*range(5), *range(10_000, 10_004))
    )


@pytest.mark.spark
@pytest.mark.slow("a query of Spark with several batches; fast: test_what_static_topics_cannot_do_is_refused")
@since_4_2
def test_work_over_a_remapping(spark: SparkSession, static: StaticTopic, tmp_path: Path) -> None:
    """Every message is handled, also one that fails first, and the group's offsets are those of logic queues."""
    folder = tmp_path / "calls"
    folder.mkdir()

    def handle(message: Any) -> None:
        text = bytes(message.value).decode()
        (folder / f"{text} {message.attempt}").touch()
        if text in ("3", "15") and message.attempt == 1:
            raise ValueError(text)

    def handled() -> set[str]:
        return {path.name for path in folder.iterdir()}

    work = WorkQueue(
        spark, nameserver=static.namesrv, topic=static.topic, group="workers", max_attempts=3, delays="1s"
    )
    query = work.for_each(handle, checkpoint=str(tmp_path / "checkpoint"))
    try:
        static.send(5)
        eventually(lambda: "3 2" in handled(), "the first half to be handled", 120)
        static.tool.remap(static.second)
        static.send(4)
        eventually(lambda: "15 2" in handled() and len(handled()) == 20, "all to be handled", 120)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert handled() == {f"{number} 1" for number in range(18)} | {"3 2", "15 2"}
    assert static.committed("workers") == [10_004, 10_004]


# --- without brokers ------------------------------------------------------------------------------------------


class Scripted(BlockingClient):
    """Brokers a, b, c; the first and the end offset of each physical queue."""

    def __init__(self, bounds: dict[MessageQueue, tuple[int, int]], mappings: dict[str, Any]) -> None:
        super().__init__("h:1", sleep=lambda _: None)
        self.bounds, self.mappings = bounds, mappings
        self.routes_to_come: list[TopicRoute] = []
        self.asked: list[str] = []

    def min_offsets(self, address: str, queues: Any, *, lo: bool | None = None) -> list[QueueOffset]:
        assert lo is False
        return [QueueOffset(self.bounds[queue][0]) for queue in queues]

    def max_offsets(self, address: str, queues: Any, *, lo: bool | None = None) -> list[QueueOffset]:
        assert lo is False
        behind = 2 if address.endswith(":2") else 0
        return [QueueOffset(self.bounds[queue][1] - behind) for queue in queues]

    def route(self, topic: str) -> TopicRoute:
        return self.routes_to_come.pop(0)

    def topic_mapping(self, address: str, topic: str) -> TopicQueueMappingDetail | None:
        self.asked.append(address)
        found = self.mappings[address[0]]
        if isinstance(found, Exception):
            raise found
        return TopicQueueMappingDetail(topic=topic, total_queues=1, hosted_queues={0: found})


def item(gen: int, name: str, logic: int, **more: int) -> LogicQueueMappingItem:
    return LogicQueueMappingItem(gen=gen, bname=name, queue_id=gen, logic_offset=logic, **more)


def route(leader: str, away: str = "", slaves: str = "") -> TopicRoute:
    """``slaves``: brokers of which only a slave is there, which has two messages less."""
    names = [name for name in "abc" if name not in away]
    return TopicRoute.of(
        "T",
        TopicRouteData(
            broker_datas=[
                BrokerData("c", name, {int(name in slaves): f"{name}:{1 + (name in slaves)}"})
                for name in names
            ],
            queue_datas=[QueueData(name, 1, 1, 6) for name in names],
            topic_queue_mapping_by_broker={
                leader: TopicQueueMappingInfo(topic="T", total_queues=1, bname=leader, curr_id_map={0: 0})
            },
        ),
    )


QUEUE = MessageQueue("T", LOGIC, 0)


def physical(gen: int, name: str) -> MessageQueue:
    return MessageQueue("T", name, gen)


def logic(bounds: list[tuple[int, int]], starts: list[int], last: int | None = None) -> LogicQueues:
    """One logic queue, part ``n`` on broker ``abc[n % 3]``; ``last``: only so many parts are decided."""
    items = [item(gen, "abc"[gen % 3], start) for gen, start in enumerate(starts)]
    queues = {physical(gen, "abc"[gen % 3]): bound for gen, bound in enumerate(bounds)}
    leader = items[-1].bname or ""
    made = LogicQueues(Scripted(queues, {leader: items}))
    made.adopt("T", route(leader), [])
    return made


@given(
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4),
    begin=st.integers(0, 40),
    more=st.integers(0, 40),
    count=st.integers(0, 12),
)
def test_arithmetic_of_parts(sizes: list[tuple[int, int]], begin: int, more: int, count: int) -> None:
    """Parts of up to five messages, the older of which may have expired, ten offsets apart; compared with sets."""
    bounds = [(min(low, high), high) for low, high in sizes]
    queues = logic(bounds, [10 * gen for gen in range(len(bounds))])
    last = 10 * (len(bounds) - 1)
    (latest,) = queues.latest([QUEUE]).values()
    assert latest == last + bounds[-1][1]
    start = min(begin, latest)
    end = min(start + more, latest)
    stored = {10 * gen + offset for gen, (low, high) in enumerate(bounds) for offset in range(low, high)}
    taken = {10 * gen + offset for gen, (_, high) in enumerate(bounds) for offset in range(high)}
    pieces = list(queues.pieces(QueueRange(QUEUE, start, end)))
    covered = [
        10 * piece.queue.queue_id + offset for piece in pieces for offset in range(piece.start, piece.end)
    ]
    assert covered == sorted(offset for offset in taken if start <= offset < end)
    if start >= last:
        stored |= set(range(last, latest))  # nobody is asked what of the last part has expired
    between = sorted(offset for offset in stored if start <= offset < end)
    assert queues.count(QUEUE, start, end) == len(between)
    reached = queues.advanced(QUEUE, start, end, count)
    if count >= len(between):
        assert reached == end
    else:
        assert start <= reached <= end
        assert [offset for offset in between if offset < reached] == between[:count]


def test_a_part_whose_logic_offset_is_not_decided_is_not_read_yet() -> None:
    client = Scripted({physical(0, "a"): (0, 7)}, {"b": [item(0, "a", 0), item(1, "b", -1)]})
    queues = LogicQueues(client)
    assert queues.adopt("T", route("b"), []) == {QUEUE: "a:1"}
    assert queues.latest([QUEUE]) == {QUEUE: 7}
    client.bounds[physical(0, "a")] = (0, 9)
    client.mappings["b"] = [item(0, "a", 0), item(1, "b", 10_000)]
    client.bounds[physical(1, "b")] = (0, 0)
    queues.adopt("T", route("b"), [QUEUE])
    assert queues.latest([QUEUE]) == {QUEUE: 10_000}
    assert list(queues.pieces(QueueRange(QUEUE, 7, 10_000))) == [QueueRange(physical(0, "a"), 7, 9)]


def test_brokers_are_asked_again_when_the_route_changes_or_a_queue_is_moving() -> None:
    client = Scripted({physical(0, "a"): (0, 7)}, {"a": [item(0, "a", 0)]})
    queues, same = LogicQueues(client), route("a")
    for _ in range(3):
        assert queues.adopt("T", same, []) == {QUEUE: "a:1"}
    assert len(client.asked) == 1
    client.mappings["a"] = [item(0, "a", 0), item(1, "a", -1)]
    moving = route("a")
    for count in (2, 3, 4):
        assert queues.adopt("T", moving, []) == {QUEUE: "a:1"}
        assert len(client.asked) == count
    client.mappings["a"] = [item(0, "a", 0), item(1, "a", 10_000)]
    for _ in range(3):
        queues.adopt("T", moving, [])
    assert len(client.asked) == 5


def test_an_old_route_leads_to_the_leader() -> None:
    items = [item(0, "a", 0), item(1, "b", 10_000)]
    client = Scripted({physical(1, "b"): (0, 3)}, {"a": items, "b": items})
    queues = LogicQueues(client)
    queues.adopt("T", route("a"), [])
    assert client.asked == ["a:1", "b:1"]
    assert queues.latest([QUEUE]) == {QUEUE: 10_003}
    client.mappings["b"] = [*items, item(2, "a", -1)]  # two that point at each other
    with pytest.raises(NoRoute, match="no broker says that it leads"):
        queues.adopt("T", route("a"), [])


def test_a_broker_that_is_away() -> None:
    queues = logic([(0, 4), (0, 2)], [0, 10_000])
    # What was read before keeps its place; what is new is an error, since a batch would miss it.
    assert queues.adopt("T", route("b", away="b"), [QUEUE]) == {}
    with pytest.raises(NoRoute, match="broker b, which has its logic queue 0, is away"):
        LogicQueues(Scripted({}, {})).adopt("T", route("b", away="b"), [])


def test_the_broker_of_an_earlier_part_is_waited_for() -> None:
    """By a new process of a query, which does not know its address."""
    client = Scripted(
        {physical(0, "a"): (2, 7), physical(1, "b"): (0, 1)}, {"b": [item(0, "a", 0), item(1, "b", 100)]}
    )
    queues = LogicQueues(client)
    assert queues.adopt("T", route("b", away="a"), []) == {QUEUE: "b:1"}
    assert queues.latest([QUEUE]) == {QUEUE: 101}
    client.routes_to_come = [route("b", away="a"), route("b", away="a"), route("b")]
    assert queues.earliest([QUEUE]) == {QUEUE: 2}
    assert client.routes_to_come == []


def test_a_slave_does_not_say_where_a_part_ends() -> None:
    """What it has not copied yet would be passed over with the gap. Its master is waited for."""
    items = [item(0, "a", 0), item(1, "b", 10_000)]
    client = Scripted({physical(0, "a"): (0, 6), physical(1, "b"): (0, 1)}, {"b": items})
    queues = LogicQueues(client)
    queues.adopt("T", route("b", slaves="a"), [])
    client.routes_to_come = [route("b", slaves="a"), route("b")]
    expected = [QueueRange(physical(0, "a"), 0, 6), QueueRange(physical(1, "b"), 0, 1)]
    assert list(queues.pieces(QueueRange(QUEUE, 0, 10_001))) == expected


def test_a_permission_that_is_missing() -> None:
    refused = BrokerError(16, "no permission", address="a:1")
    with pytest.raises(BrokerError) as caught:
        LogicQueues(Scripted({}, {"a": refused})).adopt("T", route("a"), [])
    assert caught.value.__notes__ == ["Topic T is static: its readers need the permission GET on it, too."]


@pytest.mark.parametrize(
    "items",
    [
        [item(0, "", 0)],
        [item(0, "a", 0, start_offset=-1)],
        [LogicQueueMappingItem(gen=0, bname="a", queue_id=-1)],
        [item(0, "a", 10), item(1, "b", 10)],
        [item(0, "a", 1 << 61)],
    ],
)
def test_a_mapping_that_cannot_be(items: list[LogicQueueMappingItem]) -> None:
    with pytest.raises(BadRoute):
        parts_of("T", 0, items)


def test_a_physical_queue_of_two_parts() -> None:
    items = [item(0, "a", 0), LogicQueueMappingItem(gen=1, bname="a", queue_id=0, logic_offset=100)]
    with pytest.raises(BadRoute, match="queue 0 of a is in two parts"):
        LogicQueues(Scripted({}, {"a": items})).adopt("T", route("a"), [])


def test_a_part_with_a_decided_end() -> None:
    (part, _) = parts_of("T", 0, [item(0, "a", 5, start_offset=2, end_offset=6), item(1, "b", 100)])
    assert (part.first, part.delta, part.limit) == (5, 3, 9)


@pytest.mark.parametrize("strict", ["true", "false"])
def test_messages_that_have_expired(
    static: StaticTopic, strict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those at the beginning of any part, and parts that the brokers have forgotten."""
    static.send(5)
    static.tool.remap(static.second)
    static.send(5)
    monkeypatch.setattr(LogicQueues, "lowest", lambda self, queue: 2)
    wanted = QueueRange(MessageQueue(static.topic, LOGIC, 0), 0, 10_004)
    cluster = ClusterQueues(static.options(failOnDataLoss=strict))
    cluster.queues()
    if strict == "true":
        with pytest.raises(
            DataLoss, match=f"queue 0 of topic {static.topic} on {LOGIC}: offsets 0 to 2 have"
        ):
            cluster.check_not_expired([wanted])
    else:
        kept = cluster.check_not_expired([wanted])
        assert [(each.queue.broker_name, each.start, each.end) for each in kept] == [
            (static.first, 2, 5),
            (static.second, 2, 4),
        ]
    monkeypatch.setattr(LogicQueues, "first_offset", lambda self, queue: 3)
    if strict == "true":
        with pytest.raises(DataLoss, match="offsets 0 to 3 have expired"):
            cluster.check_not_expired([wanted])
    cluster.client.close()
