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

from mqspark.broker.send.schemaguard import SchemaGuard
from mqspark.broker.state.acks import Acks
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.topics import Topic, count_stored
from mqspark.errors import InvalidMessage, MessageTooLarge, NotNow, StoreReadOnly
from mqspark.protocol import command as commands
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import PREFIX, PREFIX_BYTES, Command, SentFrames
from mqspark.protocol.connection import LARGE_BODY_BYTES
from mqspark.protocol.layouts import MAX_OPAQUE, HeaderLayout, Values, binary_opaque
from mqspark.protocol.session import Session
from mqspark.store.messages.append import PlainForm, PlainMessage

_SEND_MESSAGE_V2 = int(RequestCode.SEND_MESSAGE_V2)
_NONE: tuple[HeaderLayout, ...] = ()


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


_NO_CONSTANTS: Values = (b"",)


def _no_constants(data: bytes, start: int) -> Values:
    """``HeaderLayout.constants_of`` of no layout yet: unlike ``_NO_CONSTANTS``."""
    return ()


def _layout(alike: Sequence[HeaderLayout], data: bytes, start: int) -> HeaderLayout | None:
    """That of these which the header at ``start`` may have."""
    for layout in alike:
        if layout.constants_of(data, start) == layout.constants:
            return layout
    return None


FILES_AT_ONCE = 1
"""Queues that get their first file before the caller is asked whether there is time for more. Each takes as long as a
hundred messages."""


class SendRuns:
    def __init__(self, state: BrokerState, acks: Acks, guard: SchemaGuard) -> None:
        self._state, self._acks, self._guard = state, acks, guard
        self._static_topics = state.mappings.table
        self._table = state.store.table
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
        sent, size, acks = self._sent, len(data), self._acks
        if sent is None or self._static_topics:
            return at
        files = self._table.files_made + FILES_AT_ONCE
        while size - at > PREFIX_BYTES and (room := self._capacity - len(acks.waiting) - acks.more) > 0:
            begin = at
            messages: list[PlainMessage] = []
            topics: list[Topic] = []
            at, plan, are_checked = self._read(data, at, room, messages, topics)
            if plan is None:
                break
            read = fitting = len(messages)
            if are_checked and (fitting := self._fitting(messages, topics)) < read:
                del messages[fitting:], topics[fitting:]
            count = self._store(session, messages, topics, sent, waits=plan.waits) if messages else 0
            if plan.code != _SEND_MESSAGE_V2 and count:
                acks.other(plan.code, count)
            if count < read:
                at = begin
                for _ in range(count):
                    at += 4 + PREFIX.unpack_from(data, at)[0]
            if not count or fitting < read or self._table.files_made >= files:
                break  # the caller looks at the time
        return at

    def _read(
        self, data: bytes, at: int, room: int, messages: list[PlainMessage], topics: list[Topic]
    ) -> tuple[int, SendPlan | None, bool]:
        """Read plain sends of one code whose answers wait for the same. Returns where the next frame begins; the plan
        of the last one, None: there is none; and whether bodies of some have to fit schemas."""
        known, unpack, size = commands.layouts.known, PREFIX.unpack_from, len(data)
        settings, generation = self.settings, self._state.topics.generation
        last: SendPlan | None = None
        last_meta, are_checked, last_begin = -1, False, size - PREFIX_BYTES
        constants_of, constants = _no_constants, _NO_CONSTANTS
        lengths: tuple[int, ...] = ()
        last_born, born_ms = b"", 0
        for _ in range(room):
            if at >= last_begin:
                break
            if (read := unpack(data, at)) != lengths:
                total, meta = lengths = read
                frame_bytes, body_at = 4 + total, PREFIX_BYTES + (meta & 0xFFFFFF)
                if not 0 < frame_bytes - body_at < LARGE_BODY_BYTES:
                    break
                if meta != last_meta:
                    constants_of, constants = _no_constants, _NO_CONSTANTS
            start, end = at + PREFIX_BYTES, at + frame_bytes
            if end > size:
                break
            if constants_of(data, start) != constants:
                layout = _layout(known.get(meta, _NONE), data, start)
                plan = None if layout is None else layout.plan
                if layout is None or not isinstance(plan, SendPlan):
                    break
                if plan.settings is not settings or plan.generation != generation:
                    break
                if last is not None and (plan.waits is not last.waits or plan.code != last.code):
                    break
                if last is not None:
                    topics += [last.topic] * (len(messages) - len(topics))
                last, last_meta, layout.is_used = plan, meta, True
                constants_of, constants = layout.constants_of, layout.constants
                values_of, values_of_plan = layout.values_of, plan.values
                opaque_at, least_opaque = layout.word_opaque
                are_words, opaque_of = layout.are_words, layout.opaque
                topic, form = plan.topic, plan.form
                are_checked = are_checked or topic.validation is not None
            values = values_of(data, start)
            number, born, key = values_of_plan(values)
            try:
                queue_id = int(number)
                if born != last_born:  # many are of one millisecond
                    last_born, born_ms = born, int(born)
                if not are_words:
                    opaque = opaque_of(data, start, values)
                elif not b"".join(values).isalnum():
                    break
                elif opaque_at is None:
                    (opaque,) = binary_opaque(data, start)
                else:
                    opaque = int(values[opaque_at])
                if opaque is None or not least_opaque <= opaque <= MAX_OPAQUE:
                    break
            except ValueError:  # letters
                break
            if queue_id >= topic.queue_limit:
                break
            messages.append((form, queue_id, born_ms, key, data[at + body_at : end], opaque))
            at = end
        if last is not None:
            topics += [last.topic] * (len(messages) - len(topics))
        return at, last, are_checked

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
        message = plan.form, queue_id, born_ms, key, command.body, command.opaque
        if plan.topic.validation and not self._fitting([message], [plan.topic]):
            return False
        return self._store(session, [message], [plan.topic], sent, waits=plan.waits) > 0

    def _fitting(self, messages: Sequence[PlainMessage], topics: Sequence[Topic]) -> int:
        """How many of them, from the first on, have bodies that fit the schemas of their topics, where these are
        checked."""
        places: dict[tuple[Topic, int], list[int]] = {}
        for at, topic in enumerate(topics):
            if topic.validation:
                places.setdefault((topic, messages[at][0].sys_flag), []).append(at)
        found = len(messages)
        for (topic, flag), each in places.items():
            first = self._guard.first_unfit(topic, flag, [messages[at][4] for at in each])
            if first is not None:
                found = min(found, each[first])
        return found

    def _store(
        self,
        session: Session,
        messages: Sequence[PlainMessage],
        topics: Sequence[Topic],
        sent: SentFrames,
        *,
        waits: bool,
    ) -> int:
        """Returns how many were stored. What is refused is refused on the long way."""
        try:
            places, sizes = self._put_run(session.peer_host, messages)
        except (MessageTooLarge, InvalidMessage, StoreReadOnly, NotNow):
            return 0
        count = len(places)
        if not count:
            return 0
        count_stored(topics, sizes)
        self._state.stats.put_messages += count
        end = places[-1][0] + sizes[-1]
        self._acks.add_run(end, session, count, sent.frames(places), waits=waits)
        return count
