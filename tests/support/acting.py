"""A slave acts as master: the required behaviour of any pair of brokers, of this project or RocketMQ's.

A master dies with waiting messages: delayed, timed, in an open transaction. Its slave acts, consumers read from it, and
due messages arrive through a broker of another name. Then the master comes back.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from mqspark import LitePullConsumer, Message, TransactionProducer, TransactionState
from mqspark.message import encode_properties
from tests.support.clusters import Cluster, brokers_known_to
from tests.support.remoting import ask, log_end, send_fields
from tests.support.waiting import eventually

NAME, TOPIC, GROUP = "pair", "Acted", "PG"
SEND_V2, GET_ALL_TOPIC_CONFIG, GET_ROUTE = 310, 21, 105
DELAY_LEVEL = 3
"""10 s."""
ACTING = {
    "brokerClusterName": "Pair",
    "brokerName": NAME,
    "enableSlaveActingMaster": True,
    "totalReplicas": 2,
}
MASTER = {**ACTING, "brokerRole": "ASYNC_MASTER"}
SLAVE = {**ACTING, "brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": True, "enableRemoteEscape": True}
OTHER = {"brokerClusterName": "Pair", "brokerName": "other"}
QUICK_CHECKS = {
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 2500,
    "transactionOpBatchInterval": 100,
}


def put(broker: Cluster, body: bytes, queue_id: int = 0, **properties: str) -> None:
    more = {"a": GROUP, "f": 4 if "TRAN_MSG" in properties else 0, "g": int(time.time() * 1000)}
    header = send_fields(TOPIC, queue_id, encode_properties(properties).decode(), **more)
    answer = ask(broker.broker, SEND_V2, body, **header)
    assert answer.code == 0, answer


def is_master(namesrv: str, broker: Cluster) -> bool:
    return (
        f'"0":"{broker.broker}"'.encode()
        in ask(namesrv, GET_ROUTE, topic=TOPIC, acceptStandardJsonOnly=True).body
    )


def deliver_once(
    namesrv: str,
    start_master: Callable[[], AbstractContextManager[Cluster]],
    slave: Cluster,
    other: Cluster,
    create_topic: Callable[[Cluster, str], object],
    rest_s: float,
) -> None:
    """``start_master`` starts the master, which is killed and restarted on its files. ``rest_s``: how long after that
    no message may be delivered twice."""
    waiting = {b"delayed", b"timed", b"open"}
    plain = {b"%d" % number for number in range(40)}
    read: Counter[bytes] = Counter()
    with ExitStack() as ends:
        with start_master() as master:
            eventually(lambda: brokers_known_to(namesrv).get(NAME) == {"0": master.broker, "1": slave.broker})
            for broker in (master, other):
                create_topic(broker, TOPIC)
            producer = ends.enter_context(
                TransactionProducer(namesrv, group=GROUP, check=lambda _: TransactionState.COMMIT)
            )
            eventually(lambda: len(producer.queues(TOPIC)) == 8, "the route")
            for _ in range(8):  # it is connected to both
                producer.send(Message(TOPIC, b"known"))
            consumer = ends.enter_context(
                LitePullConsumer(namesrv, group="G", consume_from="CONSUME_FROM_FIRST_OFFSET")
            )
            consumer.subscribe(TOPIC)
            for body in sorted(plain):
                put(master, body, int(body) % 4)
            eventually(
                lambda: TOPIC.encode() in bytes(ask(slave.broker, GET_ALL_TOPIC_CONFIG).body),
                "the topic at the slave",
                120,
            )
            put(master, b"delayed", DELAY=str(DELAY_LEVEL), UNIQ_KEY="U-delayed")
            put(master, b"timed", TIMER_DELIVER_MS=str(int(time.time() * 1000) + 10_000), UNIQ_KEY="U-timed")
            put(master, b"open", TRAN_MSG="true", PGROUP=GROUP, UNIQ_KEY="U-open")
            eventually(
                lambda: log_end(slave.broker) == log_end(master.broker), "the slave to have everything"
            )
            os.kill(master.broker_pid, signal.SIGKILL)
        eventually(lambda: is_master(namesrv, slave), "the slave in the master's place")

        def poll() -> None:
            read.update(message.body for message in consumer.poll(500))

        def all_is_there() -> bool:
            poll()
            return set(read) >= waiting | plain

        eventually(all_is_there, lambda: f"missing: {sorted((waiting | plain) - set(read))}", 120)
        master = ends.enter_context(start_master())
        eventually(
            lambda: brokers_known_to(namesrv).get(NAME) == {"0": master.broker, "1": slave.broker},
            "the master is back",
        )
        put(master, b"after")
        eventually(lambda: log_end(slave.broker) == log_end(master.broker), "the slave follows again")
        end_s = time.monotonic() + rest_s
        while time.monotonic() < end_s or not read[b"after"]:
            poll()
            assert time.monotonic() < end_s + 60, "the master's new message is not read"
    more = {body: count for body, count in read.items() if count > 1 and body != b"known"}
    assert not more, more
