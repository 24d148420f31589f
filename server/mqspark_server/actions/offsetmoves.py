"""Moving a group to other offsets of a topic: which queues move, from where to where, and the moves themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, Self

from mqspark.base.document import Document
from mqspark.errors import BrokerError, ClientError, InvalidMessage
from mqspark.message import MessageQueue, is_system_topic
from mqspark.protocol.codes import ResponseCode
from mqspark_server.actions.operating import Act, Done, Operated, Preview
from mqspark_server.shown.nouns import place_of
from mqspark_server.survey.groupsurvey import member_rows
from mqspark_server.survey.surveying import each_of
from mqspark_server.survey.topicsurvey import bounds_of

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient

BEGINNING_MS, END_MS = 0, -1
"""Times, for RocketMQ's requests: before the first message, and behind the last one."""
Goal = Literal["earliest", "latest", "time", "offset"]
"""Where a group can be moved to."""
_SERVER_SIDE = "useServerSideResetOffset"
_NEED_MEMBERS = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
"""What a broker answers that moves the members of a group, not its offsets."""


class MovesAllQueues(ClientError):
    def __init__(self, broker: str) -> None:
        super().__init__(
            f"broker {broker} cannot move single queues of a group with members ({_SERVER_SIDE}):"
            " stop the members first"
        )
        self.broker = broker


class TopicOffsets(Protocol):
    """The offsets of a cluster, or of one broker."""

    async def bounds(self, topic: str) -> Mapping[MessageQueue, tuple[int, int]]:
        """For each queue that consumers read: the first offset, and the one after its last message."""
        ...

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int: ...

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        """What is committed; None if nothing is."""
        ...


class ClusterOffsets:
    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self.offset_at = admin.offset_at
        self.query_offset = admin.query_offset

    async def bounds(self, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Raises NoRoute."""
        route = await self._admin.topic_route(topic)
        # The brokers of a static topic know its physical queues only.
        known = {} if route.is_static else await bounds_of(self._admin, topic)
        found: dict[MessageQueue, tuple[int, int]] = {}

        async def add(queue: MessageQueue) -> None:
            found[queue] = known.get(queue) or await self._admin.queue_bounds(queue)

        await each_of(route.subscribe_queues, add)
        return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class QueueMove(Document):
    queue_id: int
    before: int | None = field(metadata={"description": "null: the group has no offset yet"})
    after: int
    min_offset: int
    max_offset: int
    lag_after: int


_COLUMNS = {
    "broker": "Broker",
    "queue": "#Queue",
    "from_offset": "#Now",
    "to_offset": "#Then",
    "change": "#Moves by",
    "lag": "#Lag afterwards",
}


class OffsetMove(Act, frozen=True):
    group: str
    topic: str
    at_ms: int = END_MS
    """To the first message that was stored since then."""
    offset: int | None = None
    """An offset of the one queue that moves."""
    queues: Sequence[str] = ()
    """As ``place_of`` writes them; none: all."""

    @classmethod
    def towards(
        cls,
        goal: Goal,
        group: str,
        topic: str,
        queues: Sequence[str] = (),
        *,
        time_ms: int | None,
        offset: int | None,
    ) -> Self:
        """There is a time for the goal ``time`` alone, and an offset for ``offset`` alone."""
        at_ms = {"earliest": BEGINNING_MS, "time": time_ms}.get(goal)
        return cls(group, topic, END_MS if at_ms is None else at_ms, offset, queues)

    async def moves(self, offsets: TopicOffsets) -> dict[MessageQueue, QueueMove]:
        """What would happen. Raises InvalidMessage for a queue or an offset that is not there, MQError."""
        if is_system_topic(self.topic):
            raise InvalidMessage(f"{self.topic} is a system topic", field="topic")
        bounds = await offsets.bounds(self.topic)
        places = {place_of(queue): queue for queue in bounds}
        for each in self.queues:
            if each not in places:
                raise InvalidMessage(
                    f"{each[:300]} is not BROKER:NUMBER of a queue of the topic", field="queue"
                )
        chosen = [places[each] for each in dict.fromkeys(self.queues)] or list(bounds)
        if self.offset is not None and len(chosen) > 1:
            text = f"these are {len(chosen)} queues: choose the one queue that has this offset"
            raise InvalidMessage(text, field="queue")
        found: dict[MessageQueue, QueueMove] = {}

        async def add(queue: MessageQueue) -> None:
            low, high = bounds[queue]
            before = await offsets.query_offset(self.group, queue)
            after = await self._target(offsets, queue, low, high)
            found[queue] = QueueMove(queue.queue_id, before, after, low, high, max(0, high - after))

        await each_of(chosen, add)
        return {queue: found[queue] for queue in chosen}

    async def _target(self, offsets: TopicOffsets, queue: MessageQueue, low: int, high: int) -> int:
        if self.offset is not None:
            if not low <= self.offset <= high:
                text = f"{place_of(queue)} has offsets {low} to {high}, not {self.offset}"
                raise InvalidMessage(text, field="offset")
            return self.offset
        if self.at_ms == END_MS:
            return high
        return low if self.at_ms == BEGINNING_MS else max(low, await offsets.offset_at(queue, self.at_ms))

    async def preview(self, at: Operated) -> Preview:
        """The offset that every queue would have."""
        moves = await self.moves(ClusterOffsets(at.admin))
        members = len(await member_rows(at.admin, self.group))
        facts = [
            ("Topic", self.topic),
            ("Messages to be consumed afterwards", f"{sum(each.lag_after for each in moves.values()):,}"),
            (
                "Members that are connected",
                f"{members}, which continue from there at once" if members else "none",
            ),
        ]
        rows = [
            {
                "topic": self.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "from_offset": each.before,
                "to_offset": each.after,
                "change": each.after - (each.before or 0),
                "lag": each.lag_after,
            }
            for queue, each in moves.items()
        ]
        title = f"Move {self.group} to other offsets?"
        return Preview(title, "Move", facts, _COLUMNS, rows, is_dangerous=True)

    async def apply(self, at: Operated) -> Done:
        moves = await self.moves(ClusterOffsets(at.admin))
        await self.make(at.admin, moves)
        return Done(f"group {self.group} was moved in {len(moves)} queues of {self.topic}")

    async def make(self, admin: AdminClient, moves: Mapping[MessageQueue, QueueMove]) -> None:
        """Make these moves. Members continue from the new offsets. Raises MovesAllQueues, MQError."""
        is_online = bool(await member_rows(admin, self.group))
        try:
            if not self.queues and self.offset is None:
                await admin.reset_offsets(self.group, self.topic, self.at_ms)
                return
            broker = await _moving_all(admin, self.topic, moves)
            if broker is None:
                for queue, move in moves.items():
                    await admin.reset_offset(self.group, queue, move.after)
                return
            if is_online:
                raise MovesAllQueues(broker)
        except BrokerError as error:
            if is_online or error.code not in _NEED_MEMBERS:
                raise
        for queue, move in moves.items():  # without members, what is committed is where the next one begins
            await admin.update_offset(self.group, queue, move.after)


async def _moving_all(admin: AdminClient, topic: str, queues: Iterable[MessageQueue]) -> str | None:
    """A broker that moves all queues when it is asked for one, as RocketMQ's do that leave it to the members."""
    route = await admin.topic_route(topic)
    for broker in sorted({queue.broker_name for queue in queues}):
        address = route.master(broker)
        settings = {} if address is None else await admin.broker_config(address)
        if settings.get(_SERVER_SIDE) != "true":
            return broker
    return None
