"""What the tests of clients share: topics with numbers in them, and consumers that note what they see."""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.aio import AdminClient, ConsumeFromWhere, Message, MessageExt, MessageQueue, Producer
from mqspark.errors import BrokerError
from mqspark.protocol.bodies.admin_bodies import ConsumerRunningInfo
from mqspark.protocol.codes import ResponseCode
from mqspark.testing import Cluster

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def create(broker: Cluster, topic: str, queues: int = 4) -> None:
    async with AdminClient(broker.namesrv) as admin:
        await admin.create_topic(topic, queues=queues)


async def send_numbers(broker: Cluster, topic: str, numbers: Iterable[int]) -> dict[MessageQueue, list[int]]:
    """What was acknowledged, by queue, in the order of the queue."""
    stored: dict[MessageQueue, list[tuple[int, int]]] = {}
    async with Producer(broker.namesrv, group="numbers") as producer:
        futures = [(number, await producer.send_async(Message.of(topic, str(number)))) for number in numbers]
        for number, future in futures:
            result = await future
            stored.setdefault(result.queue, []).append((result.queue_offset, number))
    return {queue: [number for _, number in sorted(items)] for queue, items in stored.items()}


def by_queue(messages: Iterable[MessageExt]) -> dict[MessageQueue, list[int]]:
    found: dict[MessageQueue, list[int]] = {}
    for message in messages:
        found.setdefault(message.queue, []).append(int(message.body))
    return found


def cached(info: ConsumerRunningInfo) -> list[int]:
    """How many messages a consumer has fetched and not handed out, by queue, as it tells tools."""
    return [queue.cached_msg_count for queue in info.mq_table.values()]


async def cached_by(admin: AdminClient, group: str) -> list[int]:
    """The same of the only member of a group; empty until its broker knows it."""
    try:
        (member,) = (await admin.group_members(group)).connection_set
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return []
    return cached(await admin.running_info(group, member.client_id))


class Seen:
    """A coroutine listener that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    async def __call__(self, message: MessageExt) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]
