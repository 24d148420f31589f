"""Delay levels (ScheduleMessageService, HookUtils).

A message with the property DELAY is stored in SCHEDULE_TOPIC_XXXX instead, in the queue of its level, where the
tags code of a queue entry is the delivery time. Each level's queue is in time order, so only its first message is
examined. A due message is stored again under its real topic, with its properties unchanged.

The progress of a level is its *delay offset*. The saved one covers only deliveries that are on disk: after a
crash a message may be delivered twice, but none is lost.

Clock steps. A forward step makes messages due. After a backward step, delivery times may be further ahead than
the level's full delay. RocketMQ then delivers at once, perhaps too early. Here such messages wait for one full
delay from then on, by the monotonic clock.

Facts: docs/rocketmq/later.md#delay-levels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from mqspark.base.bounded import Memo
from mqspark.base.clock import Clock
from mqspark.base.logs import sparing
from mqspark.base.propertystring import find_property, mark
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft, Outlet
from mqspark.broker.tables.ranges import heal_delays
from mqspark.errors import InvalidMessage, MessageTooLarge, MQError, NotNow, StoreReadOnly
from mqspark.message import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_MASK,
    parse_number,
)
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.admin_bodies import DelayOffsetSerializeWrapper
from mqspark.protocol.bodies.body import decode_table, to_document
from mqspark.protocol.bodies.topic_bodies import DataVersion
from mqspark.protocol.codes import Reason, RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.session import Session
from mqspark.record.record import Parts
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.savedtables import SavedTable
from mqspark.store.queue.delaylevels import DelayLevels
from mqspark.store.queue.queueext import EXT_ADDRESS_BELOW
from mqspark.store.store import MessageStore

_log = sparing(__name__)

BATCH_MESSAGES = 32
"""Messages that all levels together deliver in a tick; then clients have their turn, and other levels the next one."""
FILES_AT_ONCE = 2
"""Queues that get their first message in a tick: the kernel makes directories and a file for each, a millisecond."""
BATCH_BYTES = 1 << 20
"""The same limit in bytes; the last message may exceed it."""
IDLE_MS = 60_000
"""Nothing waits; an arrival causes an earlier tick."""
DELAY_RETRY_MS = 100
"""Pause after a failed put (DELAY_FOR_A_WHILE)."""
NOWHERE = "its properties name no topic and queue where it may go"
"""Why a waiting message is skipped."""
_NO_DESTINATIONS = frozenset(
    topic.encode()
    for topic in (
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
    )
)
"""Topics that the broker itself processes: delivering into one would loop forever, or decide a transaction.
RocketMQ lets anyone send to the timer topic and name such a target."""


def room_taken(room: int, files: int) -> int:
    """How much of a tick's room for messages one takes that made so many files."""
    return 1 + files * room // FILES_AT_ONCE


def delay_level(text: str | None) -> int:
    """The value of DELAY, 0 if absent. Raises Refusal if it is not a 32-bit integer."""
    if text is None:
        return 0
    try:
        level = int(text) if text.isascii() and "_" not in text and text.strip() == text else None
    except ValueError:
        level = None
    if level is None or not -(1 << 31) <= level < 1 << 31:
        remark = f"property DELAY={text[:40]} is not a delay level"
        raise Refusal(ResponseCode.SYSTEM_ERROR, remark, reason=Reason.WRONG_VALUE)
    return level


def can_wait(draft: Draft) -> bool:
    """Whether delay properties apply. Not to a half message, whose delay starts with the commit."""
    kind = draft.sys_flag & TRANSACTION_MASK
    return kind in (0, TRANSACTION_COMMIT_TYPE) and draft.topic != TRANS_HALF_TOPIC


def real_queue(properties: bytes) -> tuple[str, int] | None:
    """The target topic and queue id of a diverted message; None if its properties do not name them, or name a
    forbidden topic."""
    # The broker appends these properties last, so most messages of a queue end alike.
    start = properties.rfind(_REAL_TOPIC)
    return _real_queues[properties if start < 0 else properties[start + 1 :]] or _real_queues[properties]


def _real_queue(properties: bytes) -> tuple[str, int] | None:
    topic = find_property(properties, b"REAL_TOPIC")
    queue_id = parse_number(find_property(properties, b"REAL_QID"))
    if topic is None or queue_id is None or topic in _NO_DESTINATIONS:
        return None
    return topic.decode("utf-8", "replace"), queue_id


_REAL_TOPIC = mark(REAL_TOPIC).encode()
_real_queues = Memo("delays.realQueues", _real_queue)


class DelayOffsets:
    """``delayOffset.json``: level → the first offset that may not have been delivered."""

    def __init__(self, clock: Clock, version_step: int, outlet: Outlet | None = None) -> None:
        self._clock = clock
        self._version_step = version_step
        self.outlet = outlet
        """Where messages are delivered; None: nothing is."""
        self._waiting: deque[tuple[int, int, int]] = deque()
        """(position that must be durable first, level, offset), in the order of positions."""
        self._steps = 0
        self._generation = 0
        self.data_version = DataVersion(state_version=0, timestamp=clock.now_ms(), counter=0)
        self.table: dict[int, int] = {}

    def advance(self, level: int, offset: int, position: int) -> None:
        """``level`` has advanced to ``offset``; this may be saved when the outlet is durable up to ``position``."""
        self._waiting.append((position, level, offset))

    def forget_waiting(self) -> None:
        """Deliveries that are not durable yet will be repeated."""
        self._waiting.clear()

    @property
    def generation(self) -> int:
        self.settle()
        return self._generation

    def settle(self) -> None:
        """Note the deliveries that are durable."""
        durable = 0 if self.outlet is None else self.outlet.durable
        while self._waiting and self._waiting[0][0] <= durable:
            _, level, offset = self._waiting.popleft()
            if self.table.get(level) != offset:
                self.table[level] = offset
                self._generation += 1
                self._steps += 1
                if self._steps % self._version_step == 0:
                    self.step_version()

    def step_version(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())

    def follow(self, master: DelayOffsetSerializeWrapper) -> None:
        """Take over the progress of a master."""
        if self.table != master.offset_table:
            self.table = dict(master.offset_table)
            self._generation += 1
        if master.data_version is not None:
            self.data_version = master.data_version

    def catch_up(self, slave: DelayOffsetSerializeWrapper) -> None:
        """Take over what a slave delivered that has acted as the master. Both have the same queues."""
        for level, offset in slave.offset_table.items():
            if offset > self.table.get(level, -1):
                self.table[level] = offset
                self._generation += 1

    def load(self, data: bytes) -> None:
        """Raises ProtocolError for a malformed file."""
        wrapper = decode_table(DelayOffsetSerializeWrapper, data)
        self.table = dict(wrapper.offset_table)
        if wrapper.data_version is not None:
            self.data_version = wrapper.data_version

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        wrapper = DelayOffsetSerializeWrapper(
            offset_table=dict(sorted(self.table.items())), data_version=self.data_version
        )
        return lambda: [fastjson.dumps_pretty(to_document(wrapper)).encode()]


class _Level:
    """One level and its progress."""

    __slots__ = ("delay_ms", "next_offset", "number", "released_at_ms", "released_end")

    def __init__(self, number: int, delay_ms: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.next_offset = 0
        self.released_end = 0
        self.released_at_ms = 0
        """Monotonic. From then on offsets before ``released_end`` are due, whatever their delivery time."""

    @property
    def queue_id(self) -> int:
        return self.number - 1


class DelayService:
    """Diversion and service (``mqspark.broker.service``) of the delay levels."""

    def __init__(self, state: BrokerState, file: ConfigFile) -> None:
        self._clock = state.clock
        self._delayed = state.delayed
        self._store: MessageStore = state.store
        self._outlet: Outlet = state.writer
        self._stats = state.stats
        delays_ms = DelayLevels(state.store_config.message_delay_level).delays_ms
        self._levels = [_Level(number, delay_ms) for number, delay_ms in enumerate(delays_ms, 1)]
        self._first = 0
        """Index of the level that has the first turn."""
        self._room = 0
        """Messages that may be delivered in this tick."""
        step = state.config.delay_offset_update_version_step
        self.offsets = DelayOffsets(state.clock, step, state.writer)
        self._saved = SavedTable(self.offsets, file)
        self.handlers: dict[int, Handler] = {RequestCode.GET_ALL_DELAY_OFFSET: self.all_offsets}
        self._began_at = 0
        """The generation of the offsets at ``begin``."""
        self._stuck: dict[int, str] = {}
        """Blocked levels → why."""

    def divert(self, draft: Draft) -> None:
        """Redirect a draft with a positive delay level to the schedule topic. Raises Refusal for a level that is
        not a number, TableFull."""
        properties = draft.properties
        if DELAY not in properties or not can_wait(draft):
            return
        level = delay_level(properties[DELAY])
        if level <= 0 or not self._levels:
            return
        for name in (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS):
            properties.pop(name, None)
        level = min(level, len(self._levels))
        if draft.session is not None:
            user = self._delayed.admit(draft.session)
            self._delayed.hold_until(user, self._clock.now_ms() + self._levels[level - 1].delay_ms)
        properties[DELAY] = str(level)
        properties[REAL_TOPIC] = draft.topic
        properties[REAL_QUEUE_ID] = str(draft.queue_id)
        draft.topic = SCHEDULE_TOPIC
        draft.queue_id = level - 1

    def all_offsets(self, session: Session, command: Command) -> bytes:
        """For slaves, and for a master that comes back: the file as it would be saved now."""
        self.offsets.settle()
        return ok(command, None, b"".join(self.offsets.snapshot()()))

    # --- service ---

    def load(self) -> None:
        self._saved.load()
        self.begin(self._outlet)

    def begin(self, outlet: Outlet) -> None:
        """Deliver through ``outlet`` from now on, from the noted progress on."""
        self._outlet = self.offsets.outlet = outlet
        self.offsets.forget_waiting()
        self._began_at = self.offsets.generation
        healed = heal_delays(
            self.offsets.table, self._backup(), self._store.offsets, self._store.damages.note
        )
        for level in self._levels:
            saved = self.offsets.table.get(level.number)
            if level.number in healed:
                saved = healed[level.number]
                self.offsets.advance(level.number, saved, 0)
            level.released_end = 0
            low = max(0, self._store.offsets.min_offset(SCHEDULE_TOPIC, level.queue_id))
            high = self._store.offsets.max_offset(SCHEDULE_TOPIC, level.queue_id)
            level.next_offset = max(low, min(saved or 0, high))
            if saved is not None and saved != level.next_offset:
                self.offsets.advance(level.number, level.next_offset, 0)

    def catch_up(self, slave: DelayOffsetSerializeWrapper) -> None:
        """Take over what a slave delivered that has acted as the master."""
        self.offsets.catch_up(slave)
        self.begin(self._outlet)

    def end(self) -> None:
        """Note the deliveries that are durable; the others will be repeated. The version is a new one then, without
        which a RocketMQ master that asks for it takes its own progress for the newer."""
        if self.offsets.generation != self._began_at:
            self.offsets.step_version()
        self.offsets.forget_waiting()

    def _backup(self) -> dict[int, int]:
        before = DelayOffsets(self._clock, 1)
        try:
            before.load(self._saved.backup() or b"")
        except MQError:
            return {}
        return before.table

    def saved_tables(self) -> Sequence[SavedTable]:
        return (self._saved,)

    def tick(self) -> int:
        wait_ms = IDLE_MS
        # No message may have a store time before its delivery time, so the store's timestamp counts.
        now_ms = self._store.appender.next_store_time_ms
        levels, first = self._levels, self._first
        self._room = BATCH_MESSAGES
        for number in range(first, first + len(levels)):
            level = levels[number % len(levels)]
            if level.next_offset < self._store.offsets.max_offset(SCHEDULE_TOPIC, level.queue_id):
                if self._room <= 0:
                    self._first = number % len(levels)
                    return 0
                wait_ms = min(wait_ms, self._deliver(level, now_ms))
        return wait_ms

    def _deliver(self, level: _Level, now_ms: int) -> int:
        """Store due messages again, within the limits. Returns the ms until the next look."""
        store = self._store
        offset, entries = store.offsets.entries(SCHEDULE_TOPIC, level.queue_id, level.next_offset, self._room)
        room_bytes = BATCH_BYTES
        wait_ms = 0
        for position, size, tags_code in entries:
            if room_bytes <= 0 or self._room <= 0:
                break
            made = store.table.files_made
            try:
                place = SCHEDULE_TOPIC, level.queue_id, offset, position
                is_due = tags_code <= now_ms  # as its entry says; then it is read once, as nearly always
                record = store.reads.message_of(*place) if is_due else store.reads.parts_at(position)
                wait_ms = self._time_left_ms(level, offset, tags_code, record, now_ms)
                if wait_ms > 0:
                    break
                self._send_on(position, record if is_due else store.reads.message_of(*place))
            except (StoreReadOnly, NotNow, MessageTooLarge) as error:
                # The message stays in its queue, and later ones wait behind it.
                problem = f"delay level {level.number} is blocked at offset {offset}: {error}"
                if self._stuck.get(level.number) != problem:
                    self._stuck[level.number] = problem
                    _log.error("%s", problem)
                wait_ms = DELAY_RETRY_MS
                break
            self._stats.delayed_went_on(level.queue_id, size)
            room_bytes -= size
            self._room -= room_taken(BATCH_MESSAGES, store.table.files_made - made)
            offset += 1
            if self._stuck:
                self._stuck.pop(level.number, None)
        if offset != level.next_offset or level.number not in self.offsets.table:
            level.next_offset = offset
            self.offsets.advance(level.number, offset, self._outlet.end)
        return wait_ms

    def _time_left_ms(
        self, level: _Level, offset: int, tags_code: int, record: Parts | None, now_ms: int
    ) -> int:
        """Remaining wait of the message in ms; 0 or less: it is due."""
        left_ms = self._due_ms(level, offset, tags_code, record) - now_ms
        if left_ms <= 0:
            return 0
        if offset >= level.released_end:
            if left_ms <= level.delay_ms:
                return left_ms
            level.released_end = self._store.offsets.max_offset(SCHEDULE_TOPIC, level.queue_id)
            level.released_at_ms = self._clock.monotonic_ms() + level.delay_ms
        return min(left_ms, level.released_at_ms - self._clock.monotonic_ms())

    def _due_ms(self, level: _Level, offset: int, tags_code: int, record: Parts | None) -> int:
        """The delivery time: as the entry says, unless that is damaged."""
        is_told = tags_code >= EXT_ADDRESS_BELOW
        if record is None:
            return tags_code if is_told else 0
        own_ms = record.store_timestamp_ms + level.delay_ms
        if (
            tags_code != own_ms
            and is_told
            and self._was_level(level, offset, tags_code - record.store_timestamp_ms)
        ):
            return tags_code
        return own_ms

    def _was_level(self, level: _Level, offset: int, delay_ms: int) -> bool:
        """Whether the setting may have been another one when a message came: then one beside it waits as long. What is
        alone says nothing against it."""
        is_alone = True
        for beside in (offset - 1, offset + 1):
            found, entries = self._store.offsets.entries(SCHEDULE_TOPIC, level.queue_id, beside, 1)
            record = self._store.reads.parts_at(entries[0][0]) if entries and found == beside else None
            if record is not None:
                is_alone = False
                if entries[0][2] - record.store_timestamp_ms == delay_ms:
                    return True
        return is_alone

    def _send_on(self, position: int, record: Parts | None) -> None:
        if record is None:
            self._skip(position, "it cannot be read")
            return
        target = real_queue(record.properties)
        if target is None:
            self._skip(position, NOWHERE)
            return
        try:
            self._outlet.relay(record, *target, record.properties)
        except InvalidMessage as error:
            self._skip(position, str(error))

    def _skip(self, position: int, why: str) -> None:
        _log.error("the delayed message at %d of the log cannot be delivered: %s", position, why)

    @property
    def problem(self) -> str | None:
        """Why a level is blocked, or None."""
        return next(iter(self._stuck.values()), None)

    def runtime_info(self) -> dict[str, str]:
        """Rows of code 28: the offset of each level, and the end of its queue."""
        return {
            f"scheduleMessageOffset_{level.number}": f"{level.next_offset},{end}"
            for level in self._levels
            if (end := self._store.offsets.max_offset(SCHEDULE_TOPIC, level.queue_id))
        }
