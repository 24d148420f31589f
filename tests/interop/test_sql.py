"""SQL92 filters: Java consumers on our broker and ours on a real one, and both parsers on the same expressions."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from mqspark import ConsumeFromWhere, MessageExt, PushConsumer
from mqspark.errors import BrokerError, FilterFailed, InvalidFilter
from mqspark.filter.sql import compile_sql
from mqspark.protocol.codes import ResponseCode
from tests.interop.driver import JavaDriver, JavaError, body_of, message
from tests.interop.topics import QUEUES, create_group, create_topic, max_offset
from tests.support.clusters import Cluster

Name = Callable[[str], str]

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)

SQL = "delay > 30 AND carrier IN ('AA', 'Käfer') AND (note IS NULL OR note CONTAINS 'late')"
FLIGHTS = [
    {"delay": delay, "carrier": carrier, **note}
    for delay in ("-5", "31", "60", "31.5", "unknown")
    for carrier in ("AA", "UA", "Käfer")
    for note in ({}, {"note": "very late"}, {"note": "fine"})
]
WANTED = Counter(
    b"%d" % number
    for number, flight in enumerate(FLIGHTS)
    if flight["delay"] in ("31", "60") and flight["carrier"] != "UA" and flight.get("note") != "fine"
)


def send(
    java: JavaDriver, cluster: Cluster, topic: str, flights: list[dict[str, str]], prefix: str = ""
) -> None:
    handle = java.call("producer.start", namesrv=cluster.namesrv, group="sql-producer")["handle"]
    for number, flight in enumerate(flights):
        java.call(
            "producer.send", handle=handle, mode="sync",
            message=message(topic, f"{prefix}{number}".encode(), properties=flight),
        )  # fmt: skip
    java.call("producer.stop", handle=handle)


def push(java: JavaDriver, cluster: Cluster, topic: str, group: str, sql: str) -> int:
    return java.push(cluster.namesrv, topic, group, sql=sql)


def test_a_java_push_consumer_by_sql(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("Sql"))
    send(java, cluster, topic, FLIGHTS)
    consumer = push(java, cluster, topic, name("sql-group"), SQL)
    received = java.take(consumer, WANTED.total(), timeout_ms=20_000)
    assert Counter(map(body_of, received)) == WANTED
    # Messages sent now meet parked pulls.
    send(java, cluster, topic, FLIGHTS, prefix="later-")
    received = java.take(consumer, WANTED.total(), timeout_ms=20_000)
    assert Counter(map(body_of, received)) == Counter(b"later-" + body for body in WANTED.elements())
    assert java.take(consumer, 1, timeout_ms=500) == []
    java.call("push.stop", handle=consumer)


def test_a_java_consumer_is_told_what_does_not_compile(
    java: JavaDriver, cluster: Cluster, name: Name
) -> None:
    topic = create_topic(cluster, name("SqlBad"))
    with pytest.raises(JavaError) as refused:
        push(java, cluster, topic, name("sql-bad-group"), "a != 5")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    if cluster.kind == "mqspark":
        assert "'!' does not begin a token, at position 2" in refused.value.text


def until_it_knows_the_version(java: JavaDriver, handle: int, queue: list[object]) -> None:
    """A Java pull consumer learns a broker's version by a heartbeat, which it sends some time after its first pull."""
    deadline = time.monotonic() + 20
    while True:
        try:
            java.call("pull.pull", handle=handle, queue=queue, sql="TRUE", offset=0, max=1)
        except JavaError as error:
            if "does not upgrade" not in error.text or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def test_java_lite_pull_and_pull_by_sql(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic, group = create_topic(cluster, name("SqlLite")), create_group(cluster, name("sql-lite-group"))
    send(java, cluster, topic, FLIGHTS)
    consumer = java.call(
        "lite.start", namesrv=cluster.namesrv, topic=topic, group=group, sql=SQL, auto_commit=True,
        **{"from": "CONSUME_FROM_FIRST_OFFSET"},
    )["handle"]  # fmt: skip
    received = java.call("lite.poll", handle=consumer, count=WANTED.total(), timeout_ms=20_000)
    assert Counter(map(body_of, received)) == WANTED
    java.call("lite.stop", handle=consumer)

    handle = java.call("pull.start", namesrv=cluster.namesrv, group=group)["handle"]
    until_it_knows_the_version(java, handle, [topic, cluster.broker_name, 0])
    pulled: Counter[bytes] = Counter()
    for queue_id in range(QUEUES):
        queue, end = [topic, cluster.broker_name, queue_id], max_offset(cluster, topic, queue_id)
        result = java.call("pull.pull", handle=handle, queue=queue, sql=SQL, offset=0, max=32)
        # A send that was tried again shifts the others, so that a queue may be without any of the wanted ones.
        status = "FOUND" if result["messages"] else "NO_MATCHED_MSG"
        assert (result["status"], result["next"]) == (status, end)
        pulled.update(map(body_of, result["messages"]))
        result = java.call("pull.pull", handle=handle, queue=queue, sql="delay > 100", offset=0, max=32)
        assert (result["status"], result["next"], result["messages"]) == ("NO_MATCHED_MSG", end, [])
    assert pulled == WANTED
    java.call("pull.stop", handle=handle)


def test_our_push_consumer_by_sql(java: JavaDriver, cluster: Cluster, name: Name) -> None:
    topic = create_topic(cluster, name("PySql"))
    send(java, cluster, topic, FLIGHTS)
    lock, bodies = threading.Lock(), Counter[bytes]()

    def listen(got: MessageExt) -> None:
        with lock:
            bodies[got.body] += 1

    start = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = PushConsumer(cluster.namesrv, group=name("py-sql-group"), listener=listen, consume_from=start)
    consumer.subscribe(topic, sql="a != 5")
    with pytest.raises(BrokerError) as refused:
        consumer.start()
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    consumer.subscribe(topic, sql=SQL)
    with consumer:
        for prefix in ("", "later-"):
            if prefix:
                send(java, cluster, topic, FLIGHTS, prefix=prefix)
            expected = Counter(prefix.encode() + body for body in WANTED.elements())
            deadline = time.monotonic() + 20
            while bodies != expected and time.monotonic() < deadline:
                time.sleep(0.05)
            with lock:
                assert bodies == expected
                bodies.clear()


# ---- the parsers


NAMES = ["a", "b", "c", "missing"]
VALUES = [
    "5", "abc", "5.5", "3000000000", "true", "-7", "FALSE", "1e3", " 6 ", "+5", "0x10", "0x1p3", "NaN", "-0.0", "0",
    "Infinity", "1d", "9223372036854775808", "000000000000000000000000005", "5.", "1_0", "it's", "1e400", "-", "中文",
]  # fmt: skip
LITERALS = [
    "5", "0", "5L", "3000000000", "9223372036854775807", "9223372036854775808", "5.0", "1e3", ".5", "0.0", "1e400",
    "'abc'", "'5'", "''", "'it''s'", "'true'", "TRUE", "false", "NULL", "2147483648", "05", "0L",
]  # fmt: skip
NOISE = [
    ";",
    "!",
    ".",
    "!=",
    "==",
    "/*",
    "xyz",
    "LIKE",
    "IS",
    "NOT",
    ")",
    "(",
    "'",
    "-- c\n",
    "/* c */",
    "-",
    ",",
]


class Writer:
    """Expressions after the grammar, with a slip now and then."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def expression(self, depth: int = 2) -> str:
        text = self._equality(depth)
        while self.random.random() < 0.4:
            text += self.random.choice([" AND ", " OR ", " and "]) + self._equality(depth)
        return text

    def case(self) -> tuple[str, dict[str, str]]:
        text = self.expression()
        if self.random.random() < 0.15:
            position = self.random.randint(0, len(text))
            text = text[:position] + self.random.choice(NOISE) + text[position:]
        return text, {name: self.random.choice(VALUES) for name in NAMES[:3] if self.random.random() < 0.9}

    def _equality(self, depth: int) -> str:
        text = self._comparison(depth)
        while self.random.random() < 0.4:
            text += (
                self.random.choice(["=", " <> "]) + self._comparison(depth)
                if self.random.random() < 0.7
                else self.random.choice([" IS NULL", " is not null"])
            )
        return text

    def _comparison(self, depth: int) -> str:
        text = self._unary(depth)
        if self.random.random() < 0.55:
            negation = self.random.choice(["", "NOT "])
            kind = self.random.random()
            if kind < 0.5:
                text += self.random.choice([" < ", ">", " <= ", ">="]) + self._unary(depth)
            elif kind < 0.7:
                word = self.random.choice(["CONTAINS", "startswith", "EndsWith"])
                text += f" {negation}{word} {self._string()}"
            elif kind < 0.85:
                text += f" {negation}BETWEEN {self._unary(depth)} AND {self._unary(depth)}"
            else:
                elements = ",".join(self._string() for _ in range(self.random.randint(1, 6)))
                text += f" {negation}IN ({elements})"
        return text

    def _unary(self, depth: int) -> str:
        if self.random.random() < 0.12:
            return self.random.choice(["-", "+", "NOT "]) + self._unary(depth)
        kind = self.random.random()
        if kind < 0.5:
            return self.random.choice(NAMES)
        if kind < 0.85 or depth == 0:
            return self.random.choice(LITERALS)
        return f"({self.expression(depth - 1)})"

    def _string(self) -> str:
        return self.random.choice(["'abc'", "'5'", "''", "'b'", "'true'", "'it''s'"])


def evaluate(sql: str, properties: dict[str, str]) -> object:
    try:
        return compile_sql(sql).evaluate(properties)
    except InvalidFilter:
        return "parse error"
    except FilterFailed:
        return "evaluation error"


def test_both_parsers_say_the_same(java: JavaDriver) -> None:
    writer = Writer(92)
    cases = [writer.case() for _ in range(6_000)]
    theirs = java.call("sql.evaluate", cases=cases)
    ours = [evaluate(*case) for case in cases]
    different = [
        (sql, properties, {"ours": our, "theirs": their})
        for (sql, properties), our, their in zip(cases, ours, theirs, strict=True)
        if our != their
    ]
    assert different == []
    assert all(
        Counter(map(str, theirs))[kind] > 100 for kind in ("True", "False", "None", "evaluation error")
    )
