"""Plain sends, a run at a time: what one read of a connection brings becomes records, queue entries and answers without
a command for each.

A send is plain when its header has a known layout (``mqspark.protocol.layouts``) and one of that layout was stored as
an ordinary message before (``SendPlan``): it differs in queue, born time, unique id and body. A run ends before the
first frame that is anything else, and nothing has been changed for that frame then: it takes the long way (``send``),
which stores it, refuses it, or learns from it.

Must not know sockets, nor what a message needs that is not plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from mqspark.broker.state.acks import Acks, AnswerRun
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.topics import Topic
from mqspark.errors import InvalidMessage, MessageTooLarge, NotNow, StoreReadOnly
from mqspark.protocol import command as commands
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import PREFIX, Command, SentFrames
from mqspark.protocol.connection import LARGE_BODY_BYTES
from mqspark.protocol.layouts import Values
from mqspark.protocol.session import Session
from mqspark.store.messages.append import PlainForm, PlainMessage

_PREFIX_BYTES = PREFIX.size
_SEND_MESSAGE_V2 = int(RequestCode.SEND_MESSAGE_V2)


class SendPlan(Struct, frozen=True, gc=False):
    """What all sends of one layout have in common, once one of them was stored as an ordinary message."""

    settings: object
    """``SendRuns.settings`` and ``Topics.generation`` of the time: with others it is void."""
    generation: int
    topic: Topic
    values: Callable[[Values], tuple[bytes, bytes, bytes]]
    """Queue id, born time and unique id."""
    form: PlainForm
    waits: bool
    code: int
    """The code of the requests."""


_Sent = tuple[Topic, int]
"""What is not stored of one of a run: its topic's counters and the opaque."""


class SendRuns:
    def __init__(self, state: BrokerState, acks: Acks) -> None:
        self._state, self._acks = state, acks
        self._static_topics = state.mappings.table
        self._put_run = state.store.appender.put_run
        self.settings: object = None
        """Another one after each change of settings."""
        self._capacity = 0
        self._sent: SentFrames | None = None

    def refresh(self, capacity: int, sent: SentFrames | None) -> None:
        """The settings have changed. ``capacity``: how many messages may wait for their answers. ``sent``: None where
        answers are not as usual."""
        self.settings = object()
        self._capacity = capacity
        self._sent = sent

    def is_valid(self, plan: SendPlan) -> bool:
        return plan.settings is self.settings and plan.generation == self._state.topics.generation

    def take(self, session: Session, data: bytes, at: int) -> int:
        """Store the plain sends that ``data`` has from ``at`` on. Returns where the first frame begins that is none."""
        sent, size = self._sent, len(data)
        if sent is None or self._static_topics:
            return at
        while size - at > _PREFIX_BYTES and (room := self._capacity - len(self._acks)) > 0:
            begin = at
            messages: list[PlainMessage] = []
            sends: list[_Sent] = []
            at, plan = self._read(data, at, room, messages, sends)
            if plan is None:
                break
            count = self._store(session, messages, sends, sent, waits=plan.waits)
            if plan.code != _SEND_MESSAGE_V2 and count:
                self._acks.other(plan.code, count)
            if count < len(messages):
                at = begin
                for _ in range(count):
                    at += 4 + PREFIX.unpack_from(data, at)[0]
            if not count:
                break
        return at

    def _read(
        self, data: bytes, at: int, room: int, messages: list[PlainMessage], sends: list[_Sent]
    ) -> tuple[int, SendPlan | None]:
        """Read plain sends of one code whose answers wait for the same. Returns where the next frame begins, and the
        plan of the last one; None: there is none."""
        known, unpack, size = commands.layouts.known, PREFIX.unpack_from, len(data)
        settings, generation = self.settings, self._state.topics.generation
        last: SendPlan | None = None
        while room and size - at > _PREFIX_BYTES:
            total, meta = unpack(data, at)
            start, end = at + _PREFIX_BYTES, at + 4 + total
            body_start = start + (meta & 0xFFFFFF)
            if end > size or not 0 < end - body_start < LARGE_BODY_BYTES:
                break
            for layout in known.get(meta, ()):
                if layout.constants_of(data, start) == layout.constants:
                    break
            else:
                break
            plan = layout.plan
            if not isinstance(plan, SendPlan):
                break
            if plan is not last and (
                plan.settings is not settings
                or plan.generation != generation
                or (last is not None and (plan.waits is not last.waits or plan.code != last.code))
            ):
                break
            values = layout.values_of(data, start)
            opaque = layout.opaque(data, start, values)
            number, born, key = plan.values(values)
            try:
                queue_id, born_ms = int(number), int(born)
            except ValueError:  # letters
                break
            topic = plan.topic
            if opaque is None or queue_id >= topic.queue_limit:
                break
            layout.is_used = True
            messages.append((plan.form, queue_id, born_ms, key, data[body_start:end]))
            sends.append((topic, opaque))
            at, last = end, plan
            room -= 1
        return at, last

    def put(self, session: Session, command: Command, plan: SendPlan) -> bool:
        """A run of one, which has become a command. False: nothing was changed, and it has to take the long way."""
        sent = self._sent
        if sent is None or not self.is_valid(plan) or self._static_topics or not command.body:
            return False
        if len(self._acks) >= self._capacity:
            return False
        number, born, key = plan.values(command.values)
        try:
            queue_id, born_ms = int(number), int(born)
        except ValueError:
            return False
        if queue_id >= plan.topic.queue_limit:
            return False
        message = plan.form, queue_id, born_ms, key, command.body
        return self._store(session, [message], [(plan.topic, command.opaque)], sent, waits=plan.waits) > 0

    def _store(
        self,
        session: Session,
        messages: Sequence[PlainMessage],
        sends: Sequence[_Sent],
        sent: SentFrames,
        *,
        waits: bool,
    ) -> int:
        """Returns how many were stored. What is refused is refused on the long way."""
        try:
            places = self._put_run(session.peer_host, messages)
        except (MessageTooLarge, InvalidMessage, StoreReadOnly, NotNow):
            return 0
        count = len(places)
        if not count:
            return 0
        answers: list[tuple[int, int, int, bytes, int]] = []
        for message, (topic, opaque), (position, queue_offset, size) in zip(
            messages, sends, places, strict=False
        ):
            answers.append((position, message[1], queue_offset, message[3], opaque))
            if size <= 1024:
                topic.put_bytes += size
                topic.up_to_1k += 1
            elif size <= 4096:
                topic.put_bytes += size
                topic.up_to_4k += 1
            else:
                topic.count(size)
        self._state.stats.put_messages += count
        position, _, size = places[-1]
        self._acks.add_run(position + size, session, AnswerRun(count, sent.frames(answers)), waits=waits)
        return count
