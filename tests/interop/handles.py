"""What tests of clients in processes of their own share: members behind handles, and what they were given."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mqspark import ConsumeFromWhere, PushConsumer
from mqspark.message import MessageExt
from mqspark.record.record import decode_records
from tests.interop.driver import Driver, body_of, message
from tests.interop.topics import QUEUES, create_group, max_offset
from tests.support.clusters import Cluster
from tests.support.remoting import PULL_MESSAGE, QUERY_CONSUMER_OFFSET, ask, pull_fields
from tests.support.waiting import eventually

SEND_OK = 0
FIRST = "CONSUME_FROM_FIRST_OFFSET"
TAKE_TIMEOUT_MS = 45_000
COMPRESSED_BIT = 0x1


def start(driver: Driver, what: str, cluster: Cluster, group: str, **settings: Any) -> int:
    return int(driver.call(f"{what}.start", namesrv=cluster.namesrv, group=group, **settings)["handle"])


@contextmanager
def started(driver: Driver, what: str, cluster: Cluster, group: str, **settings: Any) -> Iterator[int]:
    handle = start(driver, what, cluster, group, **settings)
    try:
        yield handle
    finally:
        driver.call("stop", handle=handle)


def send(driver: Driver, producer: int, topic: str, body: bytes, **fields: Any) -> dict[str, Any]:
    """Send and wait."""
    sent: dict[str, Any] = driver.call(
        "producer.send", handle=producer, message=message(topic, body, **fields)
    )
    assert sent["status"] == SEND_OK, sent
    return sent


def send_all(driver: Driver, cluster: Cluster, topic: str, given: list[bytes], **fields: Any) -> None:
    """By a producer of its own."""
    with started(driver, "producer", cluster, "one-sender") as producer:
        for body in given:
            send(driver, producer, topic, body, **fields)


def take(
    driver: Driver, handle: int, count: int, timeout_ms: int = TAKE_TIMEOUT_MS, verb: str = "push.take"
) -> list[dict[str, Any]]:
    """What a listener was given: ``count`` messages, or those that came within the time."""
    received: list[dict[str, Any]] = driver.call(verb, handle=handle, count=count, timeout_ms=timeout_ms)
    return received


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


def counted(received: list[dict[str, Any]]) -> Counter[bytes]:
    return Counter(map(body_of, received))


def stored(cluster: Cluster, topic: str, queues: int = QUEUES) -> list[MessageExt]:
    """Every message of the topic, pulled without a client."""
    group = create_group(cluster, "interop-reader")
    found: list[MessageExt] = []
    for queue in range(queues):
        offset, end = 0, max_offset(cluster, topic, queue)
        while offset < end:
            reply = ask(cluster.broker, PULL_MESSAGE, **pull_fields(topic, queue, offset, group=group))
            assert reply.code == 0, reply
            found += decode_records(reply.body)
            offset = int(reply.ext["nextBeginOffset"])
    return found


def group_offset(cluster: Cluster, group: str, topic: str, queue: int) -> int | None:
    """As the group has it on the broker, None where it has none."""
    reply = ask(
        cluster.broker, QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue,
        setZeroIfNotFound=False,
    )  # fmt: skip
    return int(reply.ext["offset"]) if reply.code == 0 else None


def our_consumer(
    cluster: Cluster, topic: str, group: str, listener: Callable[[MessageExt], None], **settings: Any
) -> PushConsumer:
    """Our push consumer, from the first message on; not started."""
    consumer = PushConsumer(
        cluster.namesrv, group=group, listener=listener,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, **settings,
    )  # fmt: skip
    consumer.subscribe(topic)
    return consumer


def committed(cluster: Cluster, group: str, topic: str) -> int:
    """The sum of the group's offsets."""
    return sum(group_offset(cluster, group, topic, queue) or 0 for queue in range(QUEUES))


def check_compressed(cluster: Cluster, topic: str, group: str, large: list[bytes]) -> None:
    """Our consumer gets these bodies, which have come compressed."""
    got: list[MessageExt] = []
    with our_consumer(cluster, topic, create_group(cluster, group), got.append):
        eventually(lambda: len(got) == len(large), "all at our consumer")
    assert sorted(one.body for one in got) == sorted(large)
    assert all(one.sys_flag & COMPRESSED_BIT for one in got)


def check_order(received: list[dict[str, Any]], failures: int) -> None:
    """30 numbers with the keys 0, 1 and 2: those of a key in one queue and in order; 7 has failed so often."""
    for key in range(3):
        of_key = [one for one in received if one["properties"]["key"] == str(key)]
        expected = [n for number in range(key, 30, 3) for n in [number] * (1 + failures * (number == 7))]
        assert [int(body_of(one)) for one in of_key] == expected
        assert len({one["queue_id"] for one in of_key}) == 1
