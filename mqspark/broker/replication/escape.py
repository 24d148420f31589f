"""Messages that a slave cannot store itself, on their way to masters of other names (EscapeBridge).

An acting slave's log is a copy and stays one, so messages that its services would store go to a broker of another name
that takes sends for the topic: as sends, with the properties that they were stored with. The bridge keeps each message
until a broker has stored it, and reports the position before which everything is stored. The services record their
progress by that position, as they do by the log on a master.

    relay      a service has a message
    send       a pop has a check point, or a client has acknowledged messages
    take       the shell gets what is new, and sends it until a broker has stored it
    stored     a broker has it, or it can never be stored
    durable    everything put before is stored

A send that is not answered is repeated, so a message may be stored twice. Must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.broker.config import BrokerConfig
from mqspark.broker.pop.acting_pops import RevivePlace
from mqspark.broker.state.state import Random
from mqspark.broker.state.writer import Draft, StoredPosition
from mqspark.errors import NotNow
from mqspark.message import (
    CRC32,
    DELAY,
    HOST_FLAGS,
    MASTER_ID,
    ORIGIN_GROUP,
    PERM_WRITE,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_PREFIX,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED_TYPE,
    decode_properties,
    encode_stored_properties,
    parse_number,
)
from mqspark.protocol.bodies.topic_bodies import MAX_QUEUES, TopicRouteData
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from mqspark.protocol.receipts import normal_topic
from mqspark.record.record import Parts

MAX_ESCAPEES = 512
_MESSAGE_BYTES = 160
"""What a message weighs without its texts and body."""
MAX_ESCAPEES_BYTES = 32 << 20
"""Messages that are not stored elsewhere yet; the last one may exceed it."""

_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""Counted as stored, as a commit counts them, because another copy would be worse."""
_IMPOSSIBLE = frozenset({ResponseCode.MESSAGE_ILLEGAL})

Keeper = Callable[[int, Parts, int], None]
"""Takes a message of a topic that never leaves this broker: its queue, the record, the position held for it."""


class OtherMaster(NamedTuple):
    """A master of another name that takes sends for a topic."""

    name: str
    address: str
    queues: int


class Escapee(NamedTuple):
    """One message on its way."""

    position: int
    topic: str
    like: str
    """The topic whose brokers may take the message if nobody has ``topic`` yet."""
    group: str
    sys_flag: int
    born_timestamp_ms: int
    flag: int
    reconsume_times: int
    properties: str
    body: bytes
    queue_id: int | None = None
    """None: any."""
    place: RevivePlace | None = None
    """Where it has to go; None: to any master that takes it."""

    def header(self, target: OtherMaster, random: Random) -> SendMessageRequestHeaderV2:
        return SendMessageRequestHeaderV2.of(
            self.group,
            self.topic,
            self._queue_of(target, random),
            self.born_timestamp_ms,
            self.properties,
            default_queues=1,
            reconsume_times=self.reconsume_times,
            sys_flag=self.sys_flag,
            flag=self.flag,
        )

    def _queue_of(self, target: OtherMaster, random: Random) -> int:
        if self.place is not None:
            return self.place.queue_id
        queues = max(1, target.queues)
        return random.randrange(queues) if self.queue_id is None else self.queue_id % queues

    def among(self, found: list[OtherMaster]) -> list[OtherMaster]:
        """Those of ``found`` that it may go to."""
        place = self.place
        return found if place is None else [each for each in found if each.name == place.broker_name]


def escape_targets(route: TopicRouteData, own_name: str) -> list[OtherMaster]:
    """The masters that take sends for a topic, without brokers of this name. A slave that acts as master takes none."""
    queues = {
        data.broker_name: data.write_queue_nums
        for data in route.queue_datas
        if data.perm & PERM_WRITE and 0 < data.write_queue_nums <= MAX_QUEUES
    }
    return [
        OtherMaster(data.broker_name, data.broker_addrs[MASTER_ID], queues[data.broker_name])
        for data in route.broker_datas
        if data.broker_name != own_name and data.broker_name in queues and MASTER_ID in data.broker_addrs
    ]


def is_stored(code: int) -> bool | None:
    """Whether a broker with this answer has the message; None: no broker will ever take it."""
    return None if code in _IMPOSSIBLE else code in _STORED


class EscapeBridge:
    """An ``Outlet`` of services. Positions grow with the bytes put."""

    def __init__(self, name: str, config: BrokerConfig, precision_ms: int) -> None:
        """``name``: of its table."""
        self._precision_ms = precision_ms
        self._producer_group = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self.ledger = Ledger(name, MAX_ESCAPEES_BYTES, "EscapeBridge._new")
        self._open: BoundedMap[int, int] = self.ledger.map(0, lambda size_bytes: size_bytes)
        """End position → bytes, of what is not stored yet, in order."""
        self._new: list[Escapee] = []
        self.end = 0
        self.stored_count = 0
        self.lost_count = 0
        """Messages that a broker refused because of their content."""
        self.keepers: dict[str, Keeper] = {}
        self.placed: Callable[[int, RevivePlace], None] = lambda *_: None
        """Called with the position of what was given to ``send``, and where it is stored."""

    @property
    def durable(self) -> int:
        """Everything before this position is stored by other brokers."""
        first = next(iter(self._open.items()), None)
        return self.end if first is None else first[0] - first[1]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way, and nothing kept."""
        return not self._open

    def relay(self, record: Parts, topic: str, queue_id: int, properties: bytes) -> StoredPosition:
        """Queue a message for another broker, which chooses its queue. Raises NotNow when too much waits."""
        keeper = self.keepers.get(topic)
        if keeper is not None:
            position = self.hold(len(properties) + len(record.body))
            keeper(queue_id, record._replace(properties=properties), position)
            return StoredPosition(-1, -1, position)
        found = decode_properties(properties)
        found.pop(CRC32, None)  # belongs to the record that it was read from
        if record.sys_flag & TRANSACTION_MASK != TRANSACTION_PREPARED_TYPE:
            found.pop(DELAY, None)  # it has waited
        if topic == TIMER_TOPIC:
            topic = self._wait_elsewhere(found)
        like = normal_topic(topic, found.get(ORIGIN_GROUP, "")) if topic.startswith(RETRY_PREFIX) else topic
        text = encode_stored_properties(found)
        position = self.hold(len(text) + len(record.body) + len(topic))
        self._new.append(
            Escapee(
                position,
                topic,
                like,
                found.get(PRODUCER_GROUP) or self._producer_group,
                record.sys_flag & ~HOST_FLAGS,
                record.born_timestamp_ms,
                record.flag,
                record.reconsume_times,
                text.decode("utf-8", "replace"),
                bytes(record.body),
            )
        )
        return StoredPosition(-1, -1, position)

    def send(self, draft: Draft, place: RevivePlace | None) -> int:
        """Queue a record as it is; its position. Raises NotNow."""
        text, body = encode_stored_properties(draft.properties), bytes(draft.body)
        position = self.hold(len(text) + len(body) + len(draft.topic))
        self._new.append(
            Escapee(
                position,
                draft.topic,
                draft.topic,
                self._producer_group,
                draft.sys_flag,
                draft.born_timestamp_ms,
                draft.flag,
                draft.reconsume_times,
                text.decode("utf-8", "replace"),
                body,
                draft.queue_id,
                place,
            )
        )
        return position

    def _wait_elsewhere(self, properties: dict[str, str]) -> str:
        """A message that waits longer than the wheel reaches goes on waiting at another broker: its real topic."""
        out_ms = parse_number(properties.pop(TIMER_OUT_MS, "").encode()) or 0
        properties.setdefault(TIMER_DELIVER_MS, str(out_ms + self._precision_ms))
        for name in (TIMER_DELAY_MS, TIMER_DELAY_SEC, REAL_QUEUE_ID):
            properties.pop(name, None)
        return properties.pop(REAL_TOPIC)

    def hold(self, size_bytes: int) -> int:
        """The position of something that is not stored until ``stored`` says so. Raises NotNow."""
        if len(self._open) >= MAX_ESCAPEES or self.ledger.bytes >= MAX_ESCAPEES_BYTES:
            raise NotNow("other brokers have not taken the earlier messages yet")
        size_bytes += _MESSAGE_BYTES
        self.end += size_bytes
        self._open.keep(self.end, size_bytes)
        return self.end

    def clear(self) -> None:
        """Forget everything; what is on its way may still arrive."""
        self._new.clear()
        self._open.clear()

    # --- for the shell ---

    def take(self) -> Sequence[Escapee]:
        """What was put since the last call."""
        new, self._new = self._new, []
        return new

    def stored(self, position: int, place: RevivePlace | None = None, *, is_lost: bool = False) -> None:
        """Another broker has stored the message at ``place``, or (``is_lost``) nobody ever will."""
        if self.is_waiting(position):
            if place is not None:
                self.placed(position, place)
            self.stored_count += not is_lost
            self.lost_count += is_lost
            self.settle(position)

    def settle(self, position: int) -> None:
        """Nothing is left to do for what was put, or kept, at this position."""
        self._open.pop(position, None)

    def is_waiting(self, position: int) -> bool:
        """Whether the message still has to be stored."""
        return position in self._open
