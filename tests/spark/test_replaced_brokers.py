"""What a query of Spark is told while brokers are replaced, and that it waits instead of ending.

Scripted name servers and brokers say what servers say for some seconds of a replacement: nothing, that they are busy,
about to stop or not ready, that a broker is in no route, or what a slave has that lags behind its master.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from mqspark.arrow.cluster.batchplan import bounded_ranges
from mqspark.arrow.cluster.cluster_queues import BrokerPlace, ClusterQueues, DataLoss
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.cluster.readtasks import ReadTask
from mqspark.arrow.reading import openplaces, rangepulls
from mqspark.arrow.reading.range_fetch import read_task
from mqspark.arrow.records.encode import Rows
from mqspark.arrow.writing.routing import Router
from mqspark.client.blocking import NOT_READY, SYSTEM_ERRORS, BlockingClient
from mqspark.errors import BrokerError, NoRoute
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.record.record import encode_record
from mqspark_jobs.tables.topicqueues import TableTopic
from pyspark_pymq.options import ReadOptions, WriteOptions
from pyspark_pymq.reading.stream import ADMISSION_CONTROL
from pyspark_pymq.reading.stream_offsets import Positions
from tests.support.scripted import Answer, Scripted, served

if not ADMISSION_CONTROL:
    pytest.skip("Spark 4.1 asks for all there is", allow_module_level=True)

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_pymq.reading.stream import StreamReader

A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
TRANSIENT = [
    None,
    (ResponseCode.SYSTEM_BUSY, None, b""),
    (ResponseCode.SERVICE_NOT_AVAILABLE, None, b""),
    (ResponseCode.GO_AWAY, None, b""),
    (ResponseCode.SYSTEM_ERROR, None, b""),
]
NAMES = ["connection ends", "busy", "a slave now", "about to stop", "store is closed"]


@pytest.fixture(autouse=True)
def no_connections_kept() -> Iterator[None]:
    yield
    for connection in openplaces.KEPT.connections.values():
        connection.close()
    openplaces.KEPT.connections.clear()


class Replaced:
    """A cluster of brokers ``a`` and ``b`` whose replicas come and go: by name, what is registered, and each one's
    range of offsets."""

    def __init__(self) -> None:
        self.replicas = {name: Scripted(self._broker(name)) for name in ("a", "a-slave", "b")}
        self.registered: dict[str, dict[int, str]] = {"a": {0: "a", 1: "a-slave"}, "b": {0: "b"}}
        self.ranges = {"a": (0, 10), "a-slave": (0, 7), "b": (0, 5)}
        self.looks: Counter[int] = Counter()
        """Requests to the name server, by code."""
        self.after: dict[int, dict[str, dict[int, str]]] = {}
        """What is registered from the nth list of brokers on; from the nth route on where nobody may list brokers."""
        self.may_list = True
        self.acts = False
        """Whether routes have a slave in the place of its master while that is away."""
        self.names = Scripted(self._names)

    def _names(self, command: Command) -> Answer:
        self.looks[command.code] += 1
        is_list = command.code == RequestCode.GET_BROKER_CLUSTER_INFO
        if is_list is self.may_list:
            self.registered = self.after.pop(self.looks[command.code], self.registered)
        if is_list and not self.may_list:
            return ResponseCode.NO_PERMISSION, None, b""
        brokers = [
            BrokerData(
                cluster="c",
                broker_name=name,
                broker_addrs={number: self.replicas[one].address for number, one in replicas.items()},
            )
            for name, replicas in self.registered.items()
        ]
        if is_list:
            return (
                0,
                None,
                encode_body(ClusterInfo(broker_addr_table={each.broker_name: each for each in brokers})),
            )
        perms = {each.broker_name: 6 for each in brokers}
        for each in brokers if self.acts else ():
            each.enable_acting_master = True
            if 0 not in each.broker_addrs:
                each.broker_addrs = {0: each.broker_addrs[1]}
                perms[each.broker_name] = 4
        queues = [QueueData(name, 1, 1, perm, 0) for name, perm in perms.items()]
        return 0, None, encode_body(TopicRouteData(broker_datas=brokers, queue_datas=queues))

    def _broker(self, name: str) -> Any:
        def script(command: Command) -> Answer:
            low, high = self.ranges[name]
            if command.code == RequestCode.GET_MAX_OFFSET:
                return 0, {"offset": str(high)}, b""
            if command.code == RequestCode.GET_MIN_OFFSET:
                return 0, {"offset": str(low)}, b""
            if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
                return 0, None, b"{}"
            if command.code == RequestCode.PULL_MESSAGE:
                return pulled(int(command.ext["queueOffset"]), low, high)
            return 0, {}, b""

        return script

    @contextmanager
    def query(self, **options: str) -> Iterator[StreamReader]:
        """A reader that has read to offset 10 of ``a`` and 5 of ``b``; its pauses take no time."""
        with served(self.names, *self.replicas.values()):
            given = {"nameserver": self.names.address, "topic": "T", "pollTimeoutMs": "0"} | options
            parsed = ReadOptions.parse({key: value for key, value in given.items() if value}, streaming=True)
            reader = StreamReader(parsed, ("value",))
            client = BlockingClient(
                self.names.address, retry_ms=parsed.retry_timeout_ms, sleep=lambda _: None
            )
            reader.connected = Unpaused(parsed, client=client)
            yield reader
            client.close()


class Unpaused(ClusterQueues):
    def wait_for_routes(self) -> None:
        self._queues_at = float("-inf")


def pulled(first: int, low: int, high: int) -> Answer:
    following, code, body = high, int(ResponseCode.PULL_OFFSET_MOVED), b""
    if first < low:
        following = low
    elif first == high:
        code = ResponseCode.PULL_NOT_FOUND
    elif first < high:
        code, following, body = (
            ResponseCode.SUCCESS,
            first + 1,
            encode_record(topic="T", body=b"%d" % first, queue_offset=first),
        )
    header = {"suggestWhichBrokerId": 0, "nextBeginOffset": following, "minOffset": low, "maxOffset": high}
    return code, {name: str(value) for name, value in header.items()}, body


READ = Positions({A: 10, B: 5})


@pytest.mark.parametrize("answer", TRANSIENT, ids=NAMES)
def test_a_transient_refusal_is_repeated(answer: Answer) -> None:
    """A broker is asked again; instead of a name server, the next one is."""
    left = [answer] * 4
    broker = Scripted(lambda _: left.pop() if left else (0, {"offset": "7"}, b""))
    failing, cluster = Scripted(lambda _: answer), Replaced()
    with served(broker, failing, cluster.names, *cluster.replicas.values()):
        client = BlockingClient(broker.address, retry_ms=60_000, sleep=lambda _: None)
        assert client.max_offsets(broker.address, [A]) == [7]
        is_left = answer is None or answer[0] == ResponseCode.GO_AWAY
        assert broker.accepted == (5 if is_left else 1)
        client.close()
        client = BlockingClient(f"{failing.address};{cluster.names.address}", retry_ms=0)
        assert client.masters().keys() == {"a", "b"}
        client.close()


def test_a_final_refusal_is_not_repeated() -> None:
    answers = {"code": ResponseCode.NO_PERMISSION}
    server = Scripted(lambda _: (answers["code"], None, b""))
    with served(server):
        client = BlockingClient(server.address, retry_ms=60_000, sleep=lambda _: None)
        for code, times in ((ResponseCode.NO_PERMISSION, 1), (ResponseCode.SYSTEM_ERROR, 1 + SYSTEM_ERRORS)):
            answers["code"] = code
            for ask in (client.topics, lambda: client.max_offsets(server.address, [A])):
                before = len(server.asked)
                with pytest.raises(BrokerError):
                    ask()
                assert len(server.asked) - before == times
        client.close()


def test_a_name_server_that_is_not_ready_is_waited_for() -> None:
    """RocketMQ's waits 45 s after its start for brokers to register."""
    cluster = Replaced()
    answered, refusals = cluster.names.script, iter(range(3 * SYSTEM_ERRORS))

    def script(command: Command) -> Answer:
        is_ready = command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or next(refusals, None) is None
        return answered(command) if is_ready else (ResponseCode.SYSTEM_ERROR, None, b"")

    cluster.names.script, cluster.names.remark = script, NOT_READY
    with cluster.query() as reader:
        assert set(clustered(reader).queues()) == {A, B}
    assert next(refusals, None) is None


def clustered(reader: StreamReader) -> ClusterQueues:
    assert reader.connected is not None
    return reader.connected


def end_of(reader: StreamReader, start: Positions = READ) -> dict[MessageQueue, int]:
    return Positions.from_json(reader.latestOffset(start.to_json(), ReadAllAvailable())).offsets


@pytest.mark.parametrize("may_list", [True, False], ids=["all rights", "rights on the topic"])
@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_slave_that_lags_loses_nothing(strict: str, *, may_list: bool) -> None:
    """Its end is no loss, and no topic that was made anew, while its master is away."""
    cluster = Replaced()
    cluster.may_list = may_list
    with cluster.query(failOnDataLoss=strict) as reader:
        cluster.registered["a"] = {1: "a-slave"}
        assert end_of(reader) == READ.offsets
        cluster.ranges["b"] = (0, 6)
        assert end_of(reader) == {A: 10, B: 6}
        cluster.registered["a"] = {0: "a-slave"}  # it is the master now, and has what it has
        clustered(reader).wait_for_routes()
        if strict == "true":
            with pytest.raises(DataLoss, match="ends at 7, before offset 10"):
                end_of(reader)
        else:
            assert end_of(reader) == {A: 7, B: 6}


@pytest.mark.parametrize(
    "options", [{}, {"topic": "", "assign": '{"T": ["a:0", "b:0"]}'}], ids=["topic", "assign"]
)
def test_a_broker_that_is_in_no_route_is_waited_for(options: dict[str, str]) -> None:
    """Whether a batch is wanted of its queues or not: messages of others are read meanwhile."""
    cluster = Replaced()
    with cluster.query(**options) as reader:
        there = dict(cluster.registered)
        assert end_of(reader) == READ.offsets
        del cluster.registered["a"]
        cluster.ranges |= {"a": (0, 12), "b": (0, 6)}
        clustered(reader).wait_for_routes()
        assert end_of(reader) == {A: 10, B: 6}
        cluster.after[cluster.looks[RequestCode.GET_BROKER_CLUSTER_INFO] + 4] = there
        (partition,) = reader.partitions(READ.to_json(), Positions({A: 12, B: 6}).to_json())
        assert partition.task.ranges == (QueueRange(A, 10, 12), QueueRange(B, 5, 6))


@pytest.mark.parametrize("answer", TRANSIENT, ids=NAMES)
def test_a_broker_that_died_holds_up_the_others_while_it_is_in_the_routes(answer: Answer) -> None:
    """A name server takes some time to see that it is silent."""
    cluster = Replaced()
    with cluster.query() as reader:
        cluster.ranges |= {"a": (0, 12), "b": (0, 6)}
        alive, cluster.replicas["a"].script = cluster.replicas["a"].script, lambda _: answer
        looks, answered = iter(range(3)), cluster.names.script

        def script(command: Command) -> Answer:
            if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and next(looks, None) is None:
                cluster.registered.pop("a", None)
            return answered(command)

        cluster.names.script = script
        assert end_of(reader) == {A: 10, B: 6}
        assert "a" not in cluster.registered
        cluster.names.script, cluster.replicas["a"].script = answered, alive
        cluster.registered["a"] = {0: "a"}
        clustered(reader).wait_for_routes()
        assert end_of(reader) == {A: 12, B: 6}


def test_a_new_query_does_not_wait_for_a_misspelt_topic() -> None:
    cluster = Replaced()
    with cluster.query() as reader:
        cluster.names.script = without_topics(cluster)
        reader.prepareForTriggerAvailableNow()
        with pytest.raises(NoRoute):
            reader.initialOffset()
        assert cluster.looks[RequestCode.GET_BROKER_CLUSTER_INFO] == 0


def test_a_name_server_that_no_broker_reaches_holds_up_no_query() -> None:
    """It answers, and knows nothing."""
    cluster = Replaced()
    cut_off = Scripted(lambda _: (ResponseCode.TOPIC_NOT_EXIST, None, b""))
    with served(cut_off, cluster.names):
        client = BlockingClient(
            f"{cut_off.address};{cluster.names.address}", retry_ms=200, sleep=lambda _: None
        )
        assert client.bridged(lambda: client.route("T")).brokers.keys() == {"a", "b"}
        client.close()
    assert cut_off.asked


def test_who_may_not_list_brokers_is_refused_all_masters() -> None:
    """None would be taken for a cluster without any."""
    cluster = Replaced()
    cluster.may_list = False
    with served(cluster.names):
        client = BlockingClient(cluster.names.address, retry_ms=0)
        with pytest.raises(BrokerError, match="response code 16"):
            client.masters()
        client.close()


def test_who_may_not_list_brokers_waits_for_them_too() -> None:
    """A topic without a route, a broker in none, and a master that has moved."""
    cluster = Replaced()
    cluster.may_list = False
    with cluster.query() as reader:
        there = dict(cluster.registered)
        cluster.after = {1: {}, 5: there}
        answered = cluster.names.script

        def script(command: Command) -> Answer:
            answer = answered(command)
            has_topic = cluster.registered or command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC
            return answer if has_topic else (ResponseCode.TOPIC_NOT_EXIST, None, b"")

        cluster.names.script = script
        assert end_of(reader) == READ.offsets
        cluster.registered = {"b": {0: "b"}}
        cluster.after = {cluster.looks[RequestCode.GET_ROUTEINFO_BY_TOPIC] + 6: there}
        clustered(reader).wait_for_routes()
        (partition,) = reader.partitions(Positions({A: 8}).to_json(), Positions({A: 10}).to_json())
        assert partition.task.ranges == (QueueRange(A, 8, 10),)
        cluster.replicas["a"].script = lambda command: None
        cluster.ranges["a-slave"] = (0, 10)
        cluster.registered = {"a": {0: "a-slave"}}
        assert clustered(reader).client.min_offsets(cluster.replicas["a"].address, [A]) == [0]


def test_a_queue_that_was_deleted_is_not_waited_for() -> None:
    """Its master is there, and registers the topic without it."""
    cluster = Replaced()
    with cluster.query() as reader:
        gone = MessageQueue("T", "a", 1)
        with pytest.raises(DataLoss, match="queue 1 of topic T on a is gone"):
            reader.partitions(Positions({gone: 1}).to_json(), Positions({gone: 2}).to_json())
        assert cluster.looks[RequestCode.GET_BROKER_CLUSTER_INFO] == 1


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_broker_that_stays_away(strict: str) -> None:
    """After ``retryTimeout`` the query ends, or goes on without what the broker has."""
    cluster = Replaced()
    with cluster.query(failOnDataLoss=strict, retryTimeout="10ms") as reader:
        del cluster.registered["a"]
        batch = READ.to_json(), Positions({A: 12, B: 6}).to_json()
        if strict == "true":
            with pytest.raises(NoRoute, match="broker a is away"):
                reader.partitions(*batch)
        else:
            (partition,) = reader.partitions(*batch)
            assert partition.task.ranges == (QueueRange(B, 5, 6),)


@pytest.mark.parametrize("strict", ["true", "false"])
def test_what_a_new_slave_does_not_have_has_not_expired(strict: str) -> None:
    """It begins where its master's last segment did when it began to copy."""
    cluster = Replaced()
    with cluster.query(failOnDataLoss=strict) as reader:
        cluster.ranges["a-slave"] = (9, 10)
        cluster.registered["a"] = {1: "a-slave"}
        batch = Positions({A: 4}).to_json(), Positions({A: 10}).to_json()
        cluster.after[3] = {"a": {0: "a", 1: "a-slave"}}
        (partition,) = reader.partitions(*batch)
        assert partition.task.ranges == (QueueRange(A, 4, 10),)


def test_offsets_that_a_slave_does_not_have_are_those_of_its_master() -> None:
    """A read from and to named offsets asks it, and jobs that compare the end with what they have read."""
    cluster = Replaced()
    offsets = {"startingOffsets": '{"T": {"a:0": 8}}', "endingOffsets": '{"T": {"a:0": 10}}'}
    del cluster.registered["b"]
    with served(cluster.names, *cluster.replicas.values()):
        given = {"nameserver": cluster.names.address, "topic": "T"}
        for look, strict in ((3, "true"), (6, "false")):
            cluster.registered["a"] = {1: "a-slave"}
            cluster.after[look] = {"a": {0: "a", 1: "a-slave"}}
            options = ReadOptions.parse(given | offsets | {"failOnDataLoss": strict}, streaming=False)
            client = BlockingClient(cluster.names.address, retry_ms=60_000, sleep=lambda _: None)
            assert bounded_ranges(ClusterQueues(options, client=client), options) == [QueueRange(A, 8, 10)]
            client.close()
        cluster.registered["a"] = {1: "a-slave"}
        topic = TableTopic(
            given, client=BlockingClient(cluster.names.address, retry_ms=60_000, sleep=lambda _: None)
        )
        assert topic.bounds({"a:0": 7}).ends == {"a:0": 7}
        cluster.after[9] = {"a": {0: "a", 1: "a-slave"}}
        assert topic.bounds({"a:0": 10}).ends == {"a:0": 10}
        topic.close()


def test_a_sink_waits_for_a_master() -> None:
    """The slave is in the route meanwhile. Where nothing was written yet, the user is told at once."""
    cluster = Replaced()
    cluster.registered = {"a": {1: "a-slave"}}
    looks, answered = iter(range(3)), cluster.names.script

    def script(command: Command) -> Answer:
        if next(looks, None) is None:
            cluster.registered["a"] = {0: "a", 1: "a-slave"}
        return answered(command)

    with served(cluster.names, *cluster.replicas.values()):
        options = WriteOptions.parse({"nameserver": cluster.names.address, "topic": "T"})
        client = BlockingClient(cluster.names.address, retry_ms=60_000, sleep=lambda _: None)
        rows = pa.RecordBatch.from_pydict({"value": [b"1"]})
        encoded = Rows(rows)
        with pytest.raises(NoRoute, match="no writable queue"):
            list(Router(options, client, first_turn=0).placed(rows, encoded))
        cluster.names.script = script
        router = Router(options, client, first_turn=0, has_written=True)
        ((queues, _, _),) = router.placed(rows, encoded)
        assert list(queues) == [A]
        assert router.address(A) == cluster.replicas["a"].address
        client.close()


def test_a_queue_may_leave_the_routes_at_any_time() -> None:
    """Between two requests of one micro-batch the last known address serves."""
    cluster = Replaced()
    with cluster.query() as reader:
        queues = clustered(reader)
        known = queues.queues()[A]
        del cluster.registered["a"]
        queues.wait_for_routes()
        assert A not in queues.queues()
        assert queues.address(A) == queues.pull_of(A, 3, max_messages=1)[0] == known
        with pytest.raises(NoRoute):
            queues.address(MessageQueue("T", "c", 0))


def test_a_run_that_begins_while_a_broker_is_away() -> None:
    """AvailableNow asks for its target before it has the query's offset."""
    cluster = Replaced()
    with cluster.query() as reader:
        there = dict(cluster.registered)
        cluster.registered.clear()
        cluster.names.script, answered = without_topics(cluster), cluster.names.script
        reader.prepareForTriggerAvailableNow()
        cluster.names.script = answered
        cluster.registered |= there
        cluster.ranges |= {"a": (0, 12), "b": (0, 6)}
        assert end_of(reader) == {A: 12, B: 6}


def without_topics(cluster: Replaced) -> Callable[[Command], Answer]:
    answered = cluster.names.script
    return lambda command: (
        (ResponseCode.TOPIC_NOT_EXIST, None, b"")
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        else answered(command)
    )


def task(cluster: Replaced, start: int, end: int, **more: Any) -> ReadTask:
    return ReadTask(
        ranges=(QueueRange(A, start, end),),
        places={"a": BrokerPlace(cluster.replicas["a-slave"].address)},
        columns=("value",),
        tags=(),
        group="readers",
        fail_on_data_loss=True,
        nameserver=cluster.names.address,
        **more,
    )


def values(work: ReadTask) -> list[bytes]:
    return [row["value"] for batch in read_task(work) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("may_list", "acts"),
    [(True, False), (False, False), (False, True)],
    ids=["all rights", "rights on the topic", "and the slave acts for its master"],
)
@pytest.mark.parametrize("have", [(0, 7), (8, 10), (0, 5)], ids=["lags", "is new", "has nothing of it"])
def test_a_task_goes_on_at_the_master_of_a_slave_that_lags(
    have: tuple[int, int], *, may_list: bool, acts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is away at first, and the slave says that offsets are gone."""
    monkeypatch.setattr(rangepulls, "_PAUSE_S", 0.01)
    monkeypatch.setattr(rangepulls, "_EMPTY_RETRIES", 1)
    cluster = Replaced()
    cluster.ranges["a-slave"], cluster.may_list, cluster.acts = have, may_list, acts
    cluster.registered["a"] = {1: "a-slave"}
    cluster.after[5] = {"a": {0: "a", 1: "a-slave"}}
    with served(cluster.names, *cluster.replicas.values()):
        assert values(task(cluster, 5, 10)) == [b"%d" % offset for offset in range(5, 10)]


@pytest.mark.parametrize("strict", [True, False])
def test_a_slave_is_believed_when_no_master_comes_back(
    *, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rangepulls, "_PAUSE_S", 0.01)
    cluster = Replaced()
    cluster.registered["a"] = {1: "a-slave"}
    with served(cluster.names, *cluster.replicas.values()):
        work = replace(task(cluster, 8, 10), fail_on_data_loss=strict, retry_timeout_ms=50)
        if strict:
            with pytest.raises(DataLoss, match="offset 8 is gone"):
                values(work)
        else:
            assert values(work) == []


@pytest.mark.parametrize("answer", TRANSIENT, ids=NAMES)
def test_a_task_pulls_again_after_a_transient_refusal(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rangepulls, "_PAUSE_S", 0.01)
    cluster = Replaced()
    pulls, left = cluster.replicas["a"].script, [answer] * 3
    cluster.replicas["a"].script = lambda command: left.pop() if left else pulls(command)
    with served(cluster.names, *cluster.replicas.values()):
        places = {"a": BrokerPlace(cluster.replicas["a"].address)}
        assert values(replace(task(cluster, 8, 10), places=places)) == [b"8", b"9"]
        left += [(ResponseCode.SYSTEM_ERROR, None, b"")] * (1 + SYSTEM_ERRORS)
        with pytest.raises(BrokerError):
            values(replace(task(cluster, 8, 10), places=places))
        assert not left
