"""Transactions: the unmodified Java client and ours, on a real RocketMQ and on our broker, and both in one group."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from mqspark import LitePullConsumer, Message, MessageExt, TransactionProducer, TransactionState
from tests.interop.driver import JSON_FIRST, JavaDriver, message
from tests.interop.jars import Jars
from tests.interop.rocketmq import PATIENT, SOON, rocketmq_broker, rocketmq_namesrv
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, mqspark_broker

Name = Callable[[str], str]

pytestmark = pytest.mark.parametrize("java", JSON_FIRST, ids=["json", "binary"], indirect=True)

STATES = {
    "COMMIT_MESSAGE": TransactionState.COMMIT,
    "ROLLBACK_MESSAGE": TransactionState.ROLLBACK,
    "UNKNOW": TransactionState.UNKNOWN,
}
CASES = {
    # body: what the local transaction says, what checks are told, how often it is asked at least, whether it appears
    "commit": ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", 0, True),
    "rollback": ("ROLLBACK_MESSAGE", "COMMIT_MESSAGE", 0, False),
    "unknown, then commit": ("UNKNOW", "COMMIT_MESSAGE", 1, True),
    "unknown, then rollback": ("UNKNOW", "ROLLBACK_MESSAGE", 1, False),
    "unknown twice, then commit": ("UNKNOW", "UNKNOW,COMMIT_MESSAGE", 2, True),
}


class Transactional(Protocol):
    """A transactional producer of either kind. Messages say themselves what comes of them (Driver.java)."""

    def send(self, topic: str, body: str, local: str, checks: str) -> str:
        """The unique id."""

    def asked(self) -> list[tuple[str, dict[str, str]]]:
        """Unique id and properties of each check, in their order."""

    def stop(self) -> None: ...


class JavaProducer:
    def __init__(self, java: JavaDriver, cluster: Cluster, group: str) -> None:
        self._java = java
        self._handle = java.call("transaction.start", namesrv=cluster.namesrv, group=group)["handle"]

    def send(self, topic: str, body: str, local: str, checks: str) -> str:
        sent = message(
            topic, body.encode(), tags="T", keys="k", flag=0, properties={"local": local, "checks": checks}
        )
        result = self._java.call("transaction.send", handle=self._handle, message=sent)
        assert (result["status"], result["state"]) == ("SEND_OK", local)
        assert result["transaction_id"] == result["msg_id"]
        return str(result["msg_id"])

    def asked(self) -> list[tuple[str, dict[str, str]]]:
        found = self._java.call("transaction.checked", handle=self._handle)
        return [(one["properties"]["UNIQ_KEY"], one["properties"]) for one in found]

    def stop(self) -> None:
        self._java.call("transaction.stop", handle=self._handle)


class OurProducer:
    def __init__(self, _: JavaDriver, cluster: Cluster, group: str, topics: Sequence[str] = ()) -> None:
        self._lock = threading.Lock()
        self._asked: list[MessageExt] = []
        self._producer = TransactionProducer(
            cluster.namesrv,
            group=group,
            check=self._check,
            execute=lambda sent: STATES[sent.properties["local"]],
            topics=topics,
        )
        self._producer.start()

    def _check(self, got: MessageExt) -> TransactionState:
        answers = got.properties["checks"].split(",")
        with self._lock:
            before = sum(other.message_id == got.message_id for other in self._asked)
            self._asked.append(got)
        return STATES[answers[min(before, len(answers) - 1)]]

    def send(self, topic: str, body: str, local: str, checks: str) -> str:
        sent = Message.of(topic, body, tags="T", keys="k", properties={"local": local, "checks": checks})
        result = self._producer.send_in_transaction(sent)
        assert result.state is STATES[local]
        return result.transaction_id

    def asked(self) -> list[tuple[str, dict[str, str]]]:
        with self._lock:
            return [(got.message_id, got.properties) for got in self._asked]

    def stop(self) -> None:
        self._producer.stop()


def rest_ms(cluster: Cluster) -> int:
    """What a round of checks takes longer on a real broker."""
    return 3_000 if cluster.kind == "rocketmq" else 0


def read(cluster: Cluster, topic: str, group: str, count: int, rest_ms: int) -> list[MessageExt]:
    """``count`` messages of a topic and whatever comes within ``rest_ms`` after them."""
    received: list[MessageExt] = []
    with LitePullConsumer(cluster.namesrv, group=create_group(cluster, group)) as consumer:
        queues = consumer.fetch_message_queues(topic)
        consumer.assign(queues)
        for place in queues:
            consumer.seek_to_begin(place)
        deadline = time.monotonic() + 60
        while len(received) < count and time.monotonic() < deadline:
            received += consumer.poll(500)
        while more := consumer.poll(rest_ms):
            received += more
    return received


@pytest.mark.parametrize("kind", [JavaProducer, OurProducer], ids=["java", "python"])
def test_commit_rollback_and_checks(
    java: JavaDriver, soon: Cluster, name: Name, kind: Callable[[JavaDriver, Cluster, str], Transactional]
) -> None:
    topic, group = create_topic(soon, name("Tx")), name("tx")
    producer = kind(java, soon, group)
    try:
        ids = {body: producer.send(topic, body, case[0], case[1]) for body, case in CASES.items()}
        expected = {body for body, case in CASES.items() if case[3]}
        got = read(soon, topic, name("tx-reader"), len(expected), 2_000 + rest_ms(soon))
        checks = Counter(unique_id for unique_id, _ in producer.asked())
    finally:
        producer.stop()
    assert Counter(one.body.decode() for one in got) == Counter(expected)
    assert {body: checks[ids[body]] for body in CASES} == {body: case[2] for body, case in CASES.items()}
    for one in got:
        body = one.body.decode()
        local, answers, asked, _ = CASES[body]
        assert one.sys_flag == 8
        expected_properties = {
            "local": local,
            "checks": answers,
            "KEYS": "k",
            "TAGS": "T",
            "PGROUP": group,
            "UNIQ_KEY": ids[body],
            "__transactionId__": ids[body],
            "TRAN_MSG": "true",
            "CLUSTER": soon.cluster_name,
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if asked:
            expected_properties["TRANSACTION_CHECK_TIMES"] = str(asked)
        noise = {"WAIT", "MIN_OFFSET", "MAX_OFFSET"}
        assert {
            key: value for key, value in one.properties.items() if key not in noise
        } == expected_properties


@pytest.mark.parametrize(
    ("first", "second"), [(JavaProducer, OurProducer), (OurProducer, JavaProducer)], ids=["python", "java"]
)
def test_another_member_of_the_group_is_asked(
    java: JavaDriver,
    soon: Cluster,
    name: Name,
    first: Callable[[JavaDriver, Cluster, str], Transactional],
    second: Callable[[JavaDriver, Cluster, str], Transactional],
) -> None:
    topic, group = create_topic(soon, name("Tx")), name("tx")
    one = first(java, soon, group)
    unique_id = one.send(topic, "x", "UNKNOW", "UNKNOW,COMMIT_MESSAGE")
    one.stop()
    other = second(java, soon, group)
    try:
        # A producer of RocketMQ is known to a broker once it knows a topic there.
        other.send(topic, "y", "ROLLBACK_MESSAGE", "ROLLBACK_MESSAGE")
        got = read(soon, topic, name("tx-reader"), 1, 2_000 + rest_ms(soon))
        asked = [properties["UNIQ_KEY"] for _, properties in other.asked()]
    finally:
        other.stop()
    assert [(message.body, message.message_id) for message in got] == [(b"x", unique_id)]
    assert set(asked) == {unique_id}


FIRST_OWNER = {"transactionTimeOut": 600_000, "transactionCheckInterval": 600_000}
"""Leaves open what is open."""


@pytest.mark.slow("real brokers start at every stop")
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-first", "rocketmq-first"])
def test_open_transactions_move_with_their_directory(
    java: JavaDriver, jars: Jars, tmp_path: Path, name: Name, ours_first: bool
) -> None:
    """What one broker has prepared, and in part decided, the other one finishes: no more and no less."""

    def running(ours: bool, namesrv: str, settings: Mapping[str, object]) -> AbstractContextManager[Cluster]:
        names = {"brokerName": "mover", "brokerClusterName": "Movers"}
        sizes = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 2000}
        values = {**SOON, **sizes, **names, **settings}
        if ours:
            return mqspark_broker(tmp_path / "broker", namesrv, values)
        return rocketmq_broker(
            jars, tmp_path / "broker", namesrv, settings=values, stop_signal=signal.SIGTERM
        )

    topic, group = name("Moving"), name("tx")
    with rocketmq_namesrv(jars, tmp_path / "namesrv") as namesrv:
        with running(ours_first, namesrv, FIRST_OWNER) as cluster:
            create_topic(cluster, topic)
            producer = OurProducer(java, cluster, group)
            ids = {body: producer.send(topic, body, case[0], case[1]) for body, case in CASES.items()}
            producer.stop()
            assert not producer.asked()
            time.sleep(1)  # op messages are written every 100 ms
        with running(not ours_first, namesrv, PATIENT) as cluster:
            producer = OurProducer(java, cluster, group, topics=[topic])
            try:
                expected = {body for body, case in CASES.items() if case[3]}
                got = read(cluster, topic, name("tx-reader"), len(expected), 3_000)
                asked = Counter(unique_id for unique_id, _ in producer.asked())
            finally:
                producer.stop()
    found = Counter(one.body.decode() for one in got)
    if ours_first:
        # The real broker on a busy machine asks again before it has seen the answer, and then delivers again.
        assert found.keys() == expected
        assert {body for body in CASES if asked[ids[body]]} == {body for body in CASES if CASES[body][2]}
    else:
        assert found == Counter(expected)
        assert {body: asked[ids[body]] for body in CASES} == {body: case[2] for body, case in CASES.items()}
