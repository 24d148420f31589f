"""Timer messages: delivery at any time up to timerMaxDelaySec ahead (TimerMessageStore, HookUtils).

A message with TIMER_DELIVER_MS, TIMER_DELAY_MS or TIMER_DELAY_SEC is stored in rmq_sys_wheel_timer with the tick
of its slot in the wheel (TIMER_OUT_MS). Each call of ``tick``

    enqueues    new messages of that queue: one record each in the timer log, at the head of its slot's chain
    dequeues    the slots whose tick is over: their messages are stored again under their real topic, in the order
                of their delivery times; messages of equal time keep their order of arrival

A tick is the time from a multiple of timerPrecisionMs to the next one. A message belongs to the last tick that
ends at or contains its delivery time, so it is never early. The first due message of a slot is already late by
one tick when the tick ends. Delivering the earliest first therefore adds the time that a full slot takes to the
messages that have slack. Delivery times beyond the wheel's range re-enter the wheel on the way.

A slot may hold deletions: messages that name another one, which is then not delivered
(``mqspark.broker.timer.recall``).

The checkpoint covers only what is on disk: after a crash messages may be delivered twice, but none is lost. A
delivered slot therefore keeps its chain until the deliveries are on disk, and messages that arrive in the
meantime join the chain. Then the slot is emptied, or starts after what was delivered.

When the clock goes back, so does the reading of the wheel. (RocketMQ continues from its old position and delivers
at once what is due before it.) If a slot is half delivered at that time, or when the broker stops, its remaining
messages are put into it again.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mqspark.base.clock import NEVER_MS
from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.base.propertystring import find_property, item, joined
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Outlet
from mqspark.broker.timer.delays import BATCH_BYTES, DELAY_RETRY_MS, IDLE_MS, NOWHERE, real_queue, room_taken
from mqspark.broker.timer.timergate import TimerGate
from mqspark.broker.timer.timermetrics import TimerMetrics
from mqspark.errors import InvalidMessage, MessageTooLarge, NotNow, StoreCorrupt, StoreReadOnly, is_shortage
from mqspark.message import (
    MAX_PROPERTIES_BYTES,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
    TIMER_ROLLED_FROM,
    TIMER_TOPIC,
    decode_properties,
    encode_stored_properties,
    is_broker_topic,
    java_hashes,
    parse_number,
)
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import next_counter
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.session import Session
from mqspark.record.record import Parts
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.disk.diskjobs import Job
from mqspark.store.disk.savedtables import SavedTable
from mqspark.store.timer.timerfiles import TimerCheckpoint, TimerFiles
from mqspark.store.timer.timerlog import DELETE, NONE, RECORD_BYTES, ROLL, TimerRecord
from mqspark.store.timer.timerwheel import SLOTS, Slot

_log = sparing(__name__)


BATCH_MESSAGES = 16
"""Messages enqueued, and messages delivered, in one call of ``tick``: about a millisecond of work."""
BUSY_MS = 50
LOOK_AHEAD_MESSAGES = 128
INTERRUPTED_AT_ONCE = 32
"""Messages of a slot that are put into it again in one call of ``tick`` when the clock has gone back: a millisecond."""
_READS_A_DELIVERY = 4
"""Chain records that can be read in the time that storing one message takes."""
BLANK_SLOTS = 60
"""TIMER_BLANK_SLOTS: the distance in ticks that a message keeps from the point where the wheel wraps around."""
SNAPSHOT_BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)

NEVER_ENQUEUED = (1 << 63) - 1
"""TIMER_ENQUEUE_MS of a message that was due before it entered the wheel."""
_LAST_RECORDS = 1024
"""The number of last timer log records that are searched for the last message of the queue."""


class _Walk:
    """A slot during its delivery: first its chain is read, then its messages are stored."""

    __slots__ = (
        "cursor",
        "deleted",
        "due_ms",
        "floor",
        "is_interrupted",
        "is_read",
        "messages",
        "newest",
        "older",
        "records",
        "tick",
        "topics",
    )

    def __init__(self, slot: Slot, floor: int) -> None:
        self.tick = slot.tick
        self.messages = slot.messages
        self.floor = floor
        """Chain records before this position have been delivered."""
        self.newest = self.cursor = slot.last
        """The next record of the chain to read, ``NONE`` at the end."""
        self.records = array("q")
        """Records of messages to deliver: newest first while the chain is read, then latest delivery time first.
        Taken from the end."""
        self.due_ms = array("q")
        """Their delivery times, until the chain is read."""
        self.deleted: set[tuple[str, str]] = set()
        """Topics and keys of deleted messages: who may write to a topic may delete its messages alone."""
        self.topics: list[str] = []
        """The topics of these deletions."""
        self.is_read = False
        self.is_interrupted = False
        """Its remaining messages are being put into the slot again."""
        self.older: _Walk | None = None
        """An older part of the chain that was read ahead; joined when the cursor reaches its start."""

    def join(self, older: _Walk) -> None:
        """Append the part that was read ahead."""
        self.records += older.records
        self.due_ms += older.due_ms
        self.deleted |= older.deleted
        self.topics += older.topics
        self.cursor = older.cursor
        self.older = None

    def sort(self) -> None:
        """Called when the chain is read: moves the earliest messages to the end."""
        self.is_read = True
        due_ms = np.frombuffer(self.due_ms, np.int64)
        self.due_ms = array("q")
        if (due_ms[1:] <= due_ms[:-1]).all():  # the usual case: all have the same delay
            return
        order = np.argsort(-due_ms, kind="stable")
        self.records = array("q", np.frombuffer(self.records, np.int64)[order].tobytes())


class TimerService:
    """Diversion (``timergate``) and background service (``mqspark.broker.service``) for timer messages."""

    def __init__(self, state: BrokerState, files: TimerFiles, metrics_file: ConfigFile) -> None:
        config = state.store_config
        self._state = state
        self._clock = state.clock
        self._store = state.store
        self._outlet: Outlet = state.writer
        self.files = files
        self._wheel = files.wheel
        self._timer_log = files.log
        self._precision_ms = config.timer_precision_ms
        window = config.timer_roll_window_slot
        most = SLOTS // 2 - BLANK_SLOTS
        self._window = window if 2 <= window <= most else most
        self.metrics = metrics = TimerMetrics(
            state.clock, state.topics, Limit(state.config, "max_statistics_bytes")
        )
        self._stats = state.stats
        self._stats.watch("timer_enqueued", lambda: sum(metrics.enqueued.values()))
        self._stats.watch("timer_dequeued", lambda: sum(metrics.dequeued.values()))
        self._saved_metrics = SavedTable(self.metrics, metrics_file)
        self._queue_offset = 0
        """Messages of the timer topic before this offset are enqueued."""
        self._read_from = self._read_to = 0
        """Where this reading of the queue began, and where the queue ended then."""
        self._read_tick = 0
        """Earlier slots have nothing to deliver; 0 until there is one."""
        self._walk: _Walk | None = None
        self._ahead: _Walk | None = None
        """What has been read ahead of the slot that is due next."""
        self._floors: dict[int, int] = {}
        """Ticks whose slots were delivered up to a position of the timer log, but perhaps not on disk yet."""
        self._new_floors: dict[int, int] = {}
        """The entries that are not in ``_undurable`` yet."""
        self._undurable: deque[tuple[int, TimerCheckpoint, dict[int, int]]] = deque()
        """(position of the outlet that must be durable, the checkpoint that may be saved then, the ticks whose chains
        may be cut then)."""
        self._due = TimerCheckpoint()
        """The checkpoint that may be saved now."""
        self._followed: TimerCheckpoint | None = None
        """A slave's: what of its master's progress is to be saved."""
        self._known: set[int] = set()
        """CommitLog positions of messages that a crash left in the timer log past its checkpoint."""
        self._rebuilt_before = 0
        """Queue offsets below this were enqueued according to the checkpoint, but their records are lost."""
        self._delivered_before_ms = 0
        """What of these was due before this time was delivered."""
        self._counted_before = 0
        """Queue offsets below this are in the counts of waiting messages."""
        self._next_flush_ms = 0
        self.gate = TimerGate(state, files.wheel)
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_TIMER_CHECK_POINT: self.saved_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.all_metrics,
        }
        self.problem: str | None = None
        """Why timer messages are not delivered at present, or None."""
        self._is_broken = False
        self._contradiction = ""
        """Where the timer log contradicts the queue; until wheel and log are made again from it, nothing is
        delivered."""

    # --- requests of slaves ---------------------------------------------------------------------------------

    def saved_checkpoint(self, session: Session, command: Command) -> bytes:
        if not self._state.store_config.timer_wheel_enable:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        reached = self._followed or self.files.checkpoint
        if not reached.read_time_ms:
            # Nothing was saved yet. A RocketMQ slave that acts would walk through every second since 1970, and its
            # timer messages would be minutes late.
            oldest_ms = self._clock.now_ms() - self._window * self._precision_ms
            reached = replace(reached, read_time_ms=oldest_ms)
        return ok(command, None, reached.encode())

    def all_metrics(self, session: Session, command: Command) -> bytes:
        if not self._state.store_config.timer_wheel_enable:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return ok(command, None, encode_body(self.metrics.wrapper()))

    # --- service --------------------------------------------------------------------------------------------

    def load(self) -> None:
        files = self.files
        end = self._store.offsets.max_offset(TIMER_TOPIC, 0)
        doubtful = files.load(self._clock.now_ms(), end, clean=self._store.status.was_clean)
        if not all(map(self._is_known, doubtful)):
            self._contradict("a record of the timer log has another time than its message")
        try:
            self._saved_metrics.load()
        except StoreCorrupt as error:  # nothing is decided by these counts
            self.metrics.begin_anew()
            text = f"{error}; the counts of waiting timer messages begin at 0"
            self._store.damages.note(Damage("config.unreadable", Outcome.LOST, text))
        self._continue(end)
        self._counted_before = self._rebuilt_before if self.metrics.counts() else 0

    def _continue(self, end: int) -> None:
        """Go on from the checkpoint. ``end``: of the queue."""
        files = self.files
        saved = files.checkpoint
        queue_offset = min(saved.queue_offset, saved.master_queue_offset)
        if files.is_reset:
            queue_offset = self._first_unknown()
        elif self._timer_log.position < saved.log_position:
            files.read_again()
            saved = files.checkpoint
            self._rebuilt_before, self._delivered_before_ms = queue_offset, saved.read_time_ms
            queue_offset = min(queue_offset, self._first_unknown())
        else:
            for start in self._timer_log.files_from(saved.log_position):
                positions, records = self._timer_log.records(start)
                is_unsaved = positions >= saved.log_position
                self._known.update(records["position"][is_unsaved].tolist())
                if not all(map(self._is_known, positions[is_unsaved].tolist())):
                    self._contradict("the timer log behind its checkpoint is not what the queue has")
        low = max(0, self._store.offsets.min_offset(TIMER_TOPIC, 0))
        self._queue_offset = self._read_from = max(low, min(queue_offset, end))
        self._read_to = end
        read_tick = saved.read_time_ms // self._precision_ms
        # Records past the checkpoint may belong to earlier ticks, if the clock had gone back.
        self._read_tick = self._wheel.next_used(1, read_tick) or read_tick
        self._due = saved

    def follow(self, data: bytes) -> None:
        """A slave takes over the progress of its master, which it has no wheel and timer log for: a start as master
        reads the whole queue again, and leaves out what was due before ``read_time_ms`` and enqueued before
        ``queue_offset``. Raises ProtocolError."""
        found = TimerCheckpoint.decode(data)
        known = min(
            found.queue_offset, found.master_queue_offset, self._store.offsets.max_offset(TIMER_TOPIC, 0)
        )
        # A position behind the empty timer log says that what was enqueued before is not in it.
        self._followed = replace(
            found, log_position=RECORD_BYTES, queue_offset=known, master_queue_offset=known
        )

    @property
    def is_saving(self) -> bool:
        """Whether a job of ``jobs`` is not done: until then its files must not be reset."""
        return self.files.is_flushing

    def act(self, outlet: Outlet) -> None:
        """A slave delivers in the place of its master, through ``outlet``. Raises OSError."""
        self._outlet = outlet
        self._start_over(self._followed or self.files.checkpoint)
        self._followed = None

    def stop_acting(self) -> None:
        """The master, or another slave, goes on where this slave has come to. Raises OSError."""
        reached = self._reached()
        self._start_over(TimerCheckpoint())
        self._followed = replace(
            reached,
            version_timestamp_ms=self._clock.now_ms(),
            version_counter=next_counter(reached.version_counter),
        )

    def catch_up(self, data: bytes) -> None:
        """A master takes over what a slave delivered that has acted in its place. Called after ``load``, before the
        first ``tick``. Raises ProtocolError, OSError."""
        found = TimerCheckpoint.decode(data)
        saved = self.files.checkpoint
        if found.read_time_ms <= saved.read_time_ms:
            return
        end = self._store.offsets.max_offset(TIMER_TOPIC, 0)
        known = min(found.queue_offset, found.master_queue_offset, end)
        self._start_over(
            replace(found, log_position=RECORD_BYTES, queue_offset=known, master_queue_offset=known)
        )

    def _start_over(self, checkpoint: TimerCheckpoint) -> None:
        """Read the whole queue again, and leave out what ``checkpoint`` says is delivered. Raises OSError."""
        try:
            self.files.restart(checkpoint)
        except OSError as error:
            self.files.failed(error)
            raise
        self._walk = self._ahead = None
        self._floors, self._new_floors = {}, {}
        self._undurable.clear()
        self._known.clear()
        self.metrics.begin_anew()
        self._rebuilt_before = self._counted_before = self._queue_offset = self._next_flush_ms = 0
        self._continue(self._store.offsets.max_offset(TIMER_TOPIC, 0))

    def begin_following(self) -> None:
        """Called on a slave in place of ``load``: its wheel and timer log of an earlier life are out of date."""
        self.files.discard()
        self._followed = self.files.checkpoint

    def _first_unknown(self) -> int:
        """The queue offset after that of the timer log's last message that can be found. Messages before it may
        be enqueued again."""
        for start in reversed(self._timer_log.files_from(0)):
            _, records = self._timer_log.records(start)
            for low in range(max(len(records) - _LAST_RECORDS, 0), -1, -_LAST_RECORDS):
                found = [
                    record.queue_offset + 1
                    for position in records["position"][low : low + _LAST_RECORDS].tolist()
                    if (record := self._store.reads.parts_at(position)) is not None
                    and record.topic == TIMER_TOPIC
                ]
                if found:
                    return max(found)
        return 0

    def saved_tables(self) -> Sequence[SavedTable]:
        return (self._saved_metrics,)

    def tick(self) -> int:
        if not self._store.offsets.max_offset(TIMER_TOPIC, 0) or self._is_broken:
            return IDLE_MS
        # No message may have a store time before its delivery time, so the store's timestamp counts.
        now_ms = self._store.appender.next_store_time_ms
        now_tick = now_ms // self._precision_ms
        offset = self._queue_offset
        try:
            self._timer_log.write()  # left over from a resource shortage
            if self._contradiction and not self._make_again():
                return DELAY_RETRY_MS
            is_interrupted = self._go_back(now_ms)
            if not self._wheel.used_count:  # a look through the whole wheel takes ten milliseconds
                self._read_tick = max(self._read_tick, now_tick)
            enqueued = self._enqueue(now_ms, now_tick)
            dequeued = is_interrupted or self._dequeue(now_ms, now_tick)
        except (StoreReadOnly, NotNow) as error:
            # Nothing is lost: the queue and the wheel still hold what has to be done.
            self._report(f"timer messages are blocked: {error}")
            return DELAY_RETRY_MS
        except OSError as error:
            if is_shortage(error):
                self._report(f"timer messages are blocked: {error}")
                return DELAY_RETRY_MS
            self._note_failure(error)
            return IDLE_MS
        self.problem = None
        self._note()
        if enqueued or dequeued or self._look_ahead(now_tick):
            return 0
        wait_ms = (now_tick + 1) * self._precision_ms - now_ms
        # Under load, the backlog at the end of a tick must stay below a second's worth of messages.
        return min(wait_ms, BUSY_MS) if self._queue_offset != offset else wait_ms

    def _note_failure(self, error: OSError) -> None:
        # The wheel in memory may be ahead of the log's file; only a restart can tell what the file has.
        self._is_broken = True
        self.files.failed(error)
        self._report(f"the timer log failed, timer messages wait for a restart of the broker: {error}")

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            _log.error("%s", problem)

    # --- contradictions -------------------------------------------------------------------------------------

    def _contradict(self, what: str) -> None:
        """The timer log is a copy: what is right is known from the queue."""
        self._contradiction = self._contradiction or what

    def _make_again(self) -> bool:
        """Make wheel and timer log again from the queue. False: they are being saved. Raises OSError."""
        if self.is_saving:
            return False
        text = f"{self._contradiction}; the wheel and the timer log are made again from the queue of timer messages"
        self._store.damages.note(Damage("timer.log", Outcome.HEALED, text))
        self._contradiction = ""
        self._start_over(self._reached())
        return True

    def _reached(self) -> TimerCheckpoint:
        """What is delivered for sure, as the checkpoint of a wheel and a timer log that are to be made again."""
        self._settle()
        is_caught_up = self._queue_offset >= self._rebuilt_before
        known = max(self._rebuilt_before, self._due.queue_offset)
        return replace(
            self._due,
            read_time_ms=self._due.read_time_ms if is_caught_up else self._delivered_before_ms,
            log_position=RECORD_BYTES,
            queue_offset=known,
            master_queue_offset=known,
        )

    def _agrees(self, at: int, entry: TimerRecord, message: Parts | None, tick: int) -> bool:
        """Whether a record of the timer log leads to the timer message that it was made for."""
        if message is None or message.topic != TIMER_TOPIC:
            return self._is_expired(at, entry)
        if bool(entry.magic & DELETE) != _deletes(message.properties):
            return False
        out_ms = parse_number(find_property(message.properties, b"TIMER_OUT_MS"))
        return bool(entry.magic & ROLL) or (out_ms is not None and out_ms // self._precision_ms == tick)

    def _is_known(self, at: int) -> bool:
        entry = self._timer_log.record(at)
        if entry is None:
            return False
        tick = (entry.written_ms + entry.delay_ms) // self._precision_ms
        return self._agrees(at, entry, self._store.reads.parts_at(entry.position), tick)

    def _is_expired(self, at: int, entry: TimerRecord) -> bool:
        """Whether retention has removed the message. Older ones have older records."""
        before = self._timer_log.record(at - RECORD_BYTES)
        oldest = 0 if before is None else before.position
        return oldest <= entry.position < self._store.log.min_offset

    # --- into the wheel -------------------------------------------------------------------------------------

    def _enqueue(self, now_ms: int, now_tick: int) -> bool:
        """Returns whether there is more to do at once."""
        offset, entries = self._store.offsets.entries(TIMER_TOPIC, 0, self._queue_offset, BATCH_MESSAGES)
        if not entries:
            return False
        self._timer_log.make_room(len(entries))
        room_bytes = BATCH_BYTES
        try:
            for position, size, _ in entries:
                if room_bytes <= 0:
                    break
                self._enqueue_one(offset, position, size, now_ms, now_tick)
                offset += 1
                self._queue_offset = offset
                room_bytes -= size
        finally:
            self._timer_log.write()
        if self._known and offset >= self._store.offsets.max_offset(TIMER_TOPIC, 0):
            self._known.clear()
        return len(entries) == BATCH_MESSAGES or room_bytes <= 0

    def _enqueue_one(self, offset: int, position: int, size: int, now_ms: int, now_tick: int) -> None:
        if position in self._known:
            return
        record = self._store.reads.message_of(TIMER_TOPIC, 0, offset, position)
        if record is None:
            self._skip(position, "it cannot be read")
            return
        properties = record.properties
        out_ms = parse_number(find_property(properties, b"TIMER_OUT_MS"))
        target = real_queue(properties)
        if out_ms is None or target is None:
            self._skip(position, "it does not say when or where")
            return
        tick = out_ms // self._precision_ms
        is_past = tick * self._precision_ms < self._delivered_before_ms
        if offset < self._rebuilt_before and is_past:
            return  # delivered before its record was lost
        if b"TIMER_ROLLED_FROM" in properties and self._is_read_twice(record, is_past=is_past):
            return
        is_delete = b"TIMER_DEL_UNIQKEY" in properties and _deletes(properties)
        step, is_counted = -1 if is_delete else 1, offset < self._counted_before
        if tick < now_tick:
            if not is_delete:
                self._put(record, NEVER_ENQUEUED, now_ms, is_roll=False)
            if is_counted:
                self.metrics.add(target[0], -step, now_ms)
            return
        magic = DELETE if is_delete else 0
        if tick - now_tick >= self._window:
            magic |= ROLL
            # Far messages re-enter after the whole window, nearer ones after half of it.
            is_near = tick - now_tick - self._window < self._window // 3
            tick = now_tick + (self._window // 2 if is_near else self._window)
        slot = self._wheel.get(tick)
        at = self._timer_log.add(
            slot.last if slot is not None else NONE,
            magic,
            now_tick * self._precision_ms,
            (tick - now_tick) * self._precision_ms,
            record.physical_offset,
            size,
            java_hashes[target[0]],
        )
        if slot is None:
            self._wheel.put(tick, at, at, step)
        else:
            self._wheel.put(tick, slot.first, at, slot.messages + step)
        if not is_counted:
            self.metrics.add(target[0], step, now_ms)
        delay_s = (out_ms - record.born_timestamp_ms) // 1000
        self._stats.events(target[0]).delays_s.record(max(0, delay_s))

    def _is_read_twice(self, record: Parts, *, is_past: bool) -> bool:
        """Whether a message that has gone round is in the wheel anyway, because this reading has met it where it was
        before."""
        before = parse_number(find_property(record.properties, b"TIMER_ROLLED_FROM"))
        if before is None or not self._read_from <= before < record.queue_offset < self._read_to:
            return False
        if is_past and before < self._rebuilt_before:
            return False  # it was left out there
        _, entries = self._store.offsets.entries(TIMER_TOPIC, 0, before, 1)
        found = self._store.reads.message_of(TIMER_TOPIC, 0, before, entries[0][0]) if entries else None
        return found is not None and _identity(found) == _identity(record)

    # --- out of the wheel -----------------------------------------------------------------------------------

    def _dequeue(self, now_ms: int, now_tick: int) -> bool:
        """Returns whether there is more to do at once."""
        room = BATCH_MESSAGES
        end = self._outlet.end + BATCH_BYTES
        while room > 0 and self._outlet.end < end and not self._contradiction:
            walk = self._walk
            if walk is None:
                walk = self._walk = self._next_slot(now_tick)
                if walk is None:
                    self._read_tick = now_tick
                    return False
            if walk.cursor != NONE:
                room -= self._follow(walk, room)
            elif not walk.is_read:
                walk.sort()
                for topic in walk.topics:
                    self.metrics.add(topic, 1, now_ms)
            elif walk.records:
                made = self._store.table.files_made
                self._deliver(walk, now_ms)
                room -= room_taken(BATCH_MESSAGES, self._store.table.files_made - made)
            else:
                self._finish(walk)
        return True

    def _next_slot(self, now_tick: int) -> _Walk | None:
        low = self._read_tick
        while (tick := self._wheel.next_used(low, now_tick)) is not None:
            walk, ahead = self._begin(tick), self._ahead
            if walk is not None:
                self._read_tick = tick
                if ahead is not None and ahead.tick == tick:
                    walk.older, self._ahead = ahead, None
                return walk
            low = tick + 1
        return None

    def _begin(self, tick: int) -> _Walk | None:
        """None if the slot has nothing to deliver."""
        slot = self._wheel.get(tick)
        if slot is None:
            return None
        floor = max(slot.first, self._floors.get(tick, 0))
        return _Walk(slot, floor) if slot.last >= floor else None

    def _look_ahead(self, now_tick: int) -> bool:
        """Read the chain of the next due slot ahead while there is nothing else to do, because its first message
        is already late when the slot is due. Returns whether there is more to read."""
        ahead = self._ahead
        if ahead is None or ahead.tick != now_tick:
            ahead = self._ahead = self._begin(now_tick)
            if ahead is None:
                return False
        if ahead.cursor != NONE:
            self._follow(ahead, LOOK_AHEAD_MESSAGES // _READS_A_DELIVERY)
        return ahead.cursor != NONE

    def _follow(self, walk: _Walk, room: int) -> int:
        """Read on in a slot's chain. Returns the amount of work done."""
        steps = 0
        while walk.cursor != NONE and steps < room * _READS_A_DELIVERY:
            at = walk.cursor
            if walk.older is not None and walk.older.newest == at:
                walk.join(walk.older)
                continue
            record = self._timer_log.record(at)
            message = self._store.reads.parts_at(record.position) if record is not None else None
            if (
                record is None
                or not self._leads_on(at, record.previous, walk.floor)
                or not self._agrees(at, record, message, walk.tick)
            ):
                self._contradict(f"the timer log has no record of its slot at {at}")
                walk.cursor = NONE
                break
            walk.cursor = record.previous if record.previous >= walk.floor else NONE
            steps += 1
            is_roll = bool(record.magic & ROLL)
            if record.magic & DELETE and not is_roll:
                self._note_deletion(walk, message)
            else:
                walk.records.append(at)
                walk.due_ms.append(_due_ms(message) if message is not None else 0)
        return -(-steps // _READS_A_DELIVERY)

    def _leads_on(self, at: int, previous: int, floor: int) -> bool:
        """Whether the record before that at ``at`` in a chain may be at ``previous``. From ``floor`` on it is read."""
        if floor <= previous < at or previous == NONE:
            return True
        files = self._timer_log.files_from(0)
        return 0 <= previous < floor and (previous < files[0] or self._timer_log.record(previous) is not None)

    def _note_deletion(self, walk: _Walk, message: Parts | None) -> None:
        if message is None:
            return
        properties = decode_properties(message.properties)
        key = properties.get(TIMER_DEL_UNIQKEY)
        if key is not None:
            topic = properties.get(REAL_TOPIC, "")
            walk.deleted.add((topic, key))
            walk.topics.append(topic)

    def _deliver(self, walk: _Walk, now_ms: int) -> None:
        """Deliver the earliest message left in the slot. Raises StoreReadOnly, DiskFull; the message then stays
        in the slot."""
        found = self._find(walk, walk.records[-1], now_ms)
        if self._contradiction:
            return
        if found is not None:
            entry, record = found
            self._put(record, entry.written_ms, now_ms, is_roll=bool(entry.magic & ROLL))
        walk.records.pop()

    def _find(self, walk: _Walk, at: int, now_ms: int) -> tuple[TimerRecord, Parts] | None:
        """A message of the slot; None if it is deleted, or nothing of the slot can be trusted any more."""
        entry = self._timer_log.record(at)
        message = self._store.reads.parts_at(entry.position) if entry is not None else None
        if entry is None or message is None:
            if entry is not None and self._is_expired(at, entry):
                self._skip(entry.position, "retention has removed it")
            else:
                self._contradict(f"the timer log leads to no message at {at}")
            return None
        record = self._store.reads.message_of(TIMER_TOPIC, 0, message.queue_offset, entry.position)
        if record is None:
            self._skip(entry.position, "it is damaged")
            return None
        if walk.deleted and not entry.magic & ROLL:
            properties = record.properties
            unique_id = (find_property(properties, b"UNIQ_KEY") or b"").decode("utf-8", "replace")
            topic = (find_property(properties, b"REAL_TOPIC") or b"").decode("utf-8", "replace")
            # The key includes the topic up to RocketMQ 5.3, and later if appendTopicForTimerDeleteKey is set. The
            # broker's own messages, above all POP's check points, cannot be deleted.
            keys = unique_id, f"{topic}+{unique_id}"
            is_deleted = any((topic, key) in walk.deleted for key in keys)
            if is_deleted and not is_broker_topic(topic):
                self.metrics.add(topic, -1, now_ms)
                return None
        return entry, record

    def _finish(self, walk: _Walk) -> None:
        floor = walk.newest + RECORD_BYTES
        self._floors[walk.tick] = self._new_floors[walk.tick] = floor
        slot = self._wheel.get(walk.tick)
        if slot is not None:  # it may have grown since
            self._wheel.put(walk.tick, slot.first, slot.last, slot.messages - walk.messages)
        self._walk = None

    def _go_back(self, now_ms: int) -> bool:
        """Move the reading of the wheel back if the clock has gone back. Returns whether there is more of that to do:
        a slot may have very many messages."""
        now_tick = now_ms // self._precision_ms
        self._read_tick = min(self._read_tick, now_tick)
        if self._walk is not None and (self._walk.tick >= now_tick or self._walk.is_interrupted):
            self._interrupt(now_ms, INTERRUPTED_AT_ONCE)
        return self._is_interrupted

    @property
    def _is_interrupted(self) -> bool:
        return self._walk is not None and self._walk.is_interrupted

    def _interrupt(self, now_ms: int, most: int) -> None:
        """Stop delivering the slot: put its remaining messages into it again, up to ``most`` of them now. Raises
        DiskFull, OSError."""
        walk = self._walk
        slot = self._wheel.get(walk.tick) if walk is not None and walk.is_read else None
        if walk is None or slot is None:
            self._walk = None
            return
        rest = max(0, len(walk.records) - most)
        self._timer_log.make_room(len(walk.records) - rest)
        walk.is_interrupted = True
        last, count = slot.last, 0
        for at in reversed(walk.records[rest:]):
            found = self._find(walk, at, now_ms)
            if found is not None:
                # New records go after everything in the slot, so a power cut before they are on disk leaves the
                # old ones in place.
                last = self._timer_log.add(last, *found[0][2:8])
                count += 1
        self._timer_log.write()
        if self._contradiction:
            self._walk = None  # the slot stays as it was
            return
        del walk.records[rest:]
        self._wheel.put(walk.tick, slot.first, last, slot.messages + count)
        if not rest:
            self._finish(walk)

    def _put(self, record: Parts, enqueue_ms: int, now_ms: int, *, is_roll: bool) -> None:
        """Store a timer message again, to its topic or for another round. Raises StoreReadOnly, DiskFull."""
        target = real_queue(record.properties)
        if target is None:
            self._skip(record.physical_offset, NOWHERE)
            return
        topic, queue_id = (TIMER_TOPIC, 0) if is_roll else target
        try:
            rolled_from = record.queue_offset if is_roll else None
            properties = _stamped(record.properties, enqueue_ms, now_ms, rolled_from)
            if len(properties) > MAX_PROPERTIES_BYTES:
                properties = record.properties  # deliver without the time stamps
            self._outlet.relay(record, topic, queue_id, properties)
        except (InvalidMessage, MessageTooLarge) as error:
            self._skip(record.physical_offset, str(error))
        if enqueue_ms != NEVER_ENQUEUED:
            self.metrics.add(target[0], -1, now_ms)

    def _skip(self, position: int, why: str) -> None:
        _log.error("the timer message at %d of the log cannot be delivered: %s", position, why)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def _note(self) -> None:
        """Note the present state; it may be saved when everything delivered is durable."""
        last = self._undurable[-1][1] if self._undurable else self._due
        reached = replace(
            self._due,
            read_time_ms=self._read_tick * self._precision_ms,
            log_position=self._timer_log.position,
            queue_offset=self._queue_offset,
            master_queue_offset=self._queue_offset,
        )
        if self._new_floors or reached != replace(
            last,
            state_version=self._due.state_version,
            version_timestamp_ms=self._due.version_timestamp_ms,
            version_counter=self._due.version_counter,
        ):
            self._undurable.append((self._outlet.end, reached, self._new_floors))
            self._new_floors = {}
        self._settle()

    def _settle(self) -> None:
        durable = self._outlet.durable
        while self._undurable and self._undurable[0][0] <= durable:
            _, self._due, floors = self._undurable.popleft()
            for tick, floor in floors.items():
                if self._floors[tick] == floor:
                    del self._floors[tick]
                slot = self._wheel.get(tick)
                if slot is not None and slot.last < floor:
                    self._wheel.clear(tick)
                elif slot is not None and slot.first < floor:
                    self._wheel.put(tick, floor, slot.last, slot.messages)

    def jobs(self, *, final: bool = False) -> list[Job]:
        """Blocking work that is due. ``final``: ``tick`` is not called any more."""
        now_ms = self._clock.monotonic_ms()
        if self._followed is not None:
            if self._followed == self.files.checkpoint:
                return []
            return [self.files.flush(self._followed, self._store.log.min_offset)]
        if final and not self._is_broken:
            self._end()
        if self._is_broken or (now_ms < self._next_flush_ms and not final):
            return []
        self._settle()
        if self._is_interrupted and not final:
            return []  # after a kill, what is in the slot twice would be delivered twice
        if self._is_reading_again:
            return []  # a start begins with what is on disk, and leaves out what was delivered before
        saved = self.files.checkpoint
        due = replace(
            self._due,
            state_version=saved.state_version,
            version_timestamp_ms=saved.version_timestamp_ms,
            version_counter=saved.version_counter,
        )
        same = due if final else replace(due, read_time_ms=saved.read_time_ms)
        if same == saved and not self._wheel.is_dirty:
            return []
        self._next_flush_ms = now_ms + self._state.store_config.timer_flush_interval_ms
        counter = next_counter(saved.version_counter)
        due = replace(due, version_timestamp_ms=self._clock.now_ms(), version_counter=counter)
        return [self.files.flush(due, self._store.log.min_offset)]

    @property
    def _is_reading_again(self) -> bool:
        """Whether what may be saved lacks messages that were in the wheel before."""
        due = self._due
        return due.log_position > self._timer_log.position or due.queue_offset < self._rebuilt_before

    def _end(self) -> None:
        try:
            if self._walk is not None:
                self._interrupt(self._clock.now_ms(), len(self._walk.records))
        except NotNow as error:
            self._report(f"messages of a tick will be delivered again: {error}")
        except OSError as error:
            if is_shortage(error):
                self._report(f"messages of a tick will be delivered again: {error}")
            else:
                self._note_failure(error)
            return
        self._note()

    def is_idle(self) -> bool:
        """No timer message is late: all that arrived are in the wheel, and all due ones have left it."""
        is_enqueued = self._queue_offset >= self._store.offsets.max_offset(TIMER_TOPIC, 0)
        behind_ms = self._clock.now_ms() - self._read_tick * self._precision_ms
        return is_enqueued and (not self._read_tick or behind_ms < 2 * self._precision_ms)

    def snapshot(self) -> dict[int, int]:
        """Messages in the wheel by how long they wait at most, in s (TimerMetrics.getTimerDistList)."""
        now_tick = self._clock.now_ms() // self._precision_ms
        ticks = [now_tick, *(now_tick + bound * 1000 // self._precision_ms for bound in SNAPSHOT_BOUNDS_S)]
        return {
            bound_s: self._wheel.count(low, high)
            for bound_s, (low, high) in zip(SNAPSHOT_BOUNDS_S, pairwise(ticks), strict=True)
        }

    def enqueue_latency_ms(self) -> int:
        """How long the oldest message has waited that is not in the wheel yet."""
        if self._queue_offset >= self._store.offsets.max_offset(TIMER_TOPIC, 0):
            return 0
        stored_ms = self._store.offsets.store_timestamp_at(TIMER_TOPIC, 0, self._queue_offset)
        return max(0, self._clock.now_ms() - stored_ms) if stored_ms > 0 else 0

    def runtime_info(self) -> dict[str, str]:
        """Rows of code 28."""
        end = self._store.offsets.max_offset(TIMER_TOPIC, 0)
        if not end:
            return {}
        read_ms = self._read_tick * self._precision_ms
        return {
            "timerReadBehind": str(max(0, self._clock.now_ms() - read_ms) // 1000),
            "timerOffsetBehind": str(end - self._queue_offset),
            "timerCongestNum": str(self._wheel.waiting),
            "timerEnqueueTps": str(self._stats.recent("timer_enqueued")),
            "timerDequeueTps": str(self._stats.recent("timer_dequeued")),
        }


def _due_ms(message: Parts) -> int:
    """The delivery time as far as the message tells it. A message that re-enters the wheel does not say when its
    delay started."""
    properties = message.properties
    for name, unit_ms, since_ms in (
        (b"TIMER_DELAY_SEC", 1000, message.store_timestamp_ms),
        (b"TIMER_DELAY_MS", 1, message.store_timestamp_ms),
        (b"TIMER_DELIVER_MS", 1, 0),
    ):
        if name in properties:
            number = parse_number(find_property(properties, name))
            if number is not None:
                return min(since_ms + number * unit_ms, NEVER_MS)
    return 0


def _deletes(properties: bytes) -> bool:
    return find_property(properties, b"TIMER_DEL_UNIQKEY") is not None


def _identity(message: Parts) -> tuple[int, bytes | None, bytes | None]:
    """The same for a message and what becomes of it in the wheel."""
    properties = message.properties
    return (
        message.born_timestamp_ms,
        find_property(properties, b"UNIQ_KEY"),
        find_property(properties, b"TIMER_OUT_MS"),
    )


def _stamped(properties: bytes, enqueue_ms: int, now_ms: int, rolled_from: int | None) -> bytes:
    """The message's properties with the times at which it entered and left the wheel. ``rolled_from``: its queue offset
    if it goes round again."""
    if rolled_from is not None or b"TIMER_ENQUEUE_MS" in properties:
        found = decode_properties(properties)
        found[TIMER_ENQUEUE_MS] = str(enqueue_ms)
        if rolled_from is not None:
            found[TIMER_ROLL_TIMES] = str((parse_number(found.get(TIMER_ROLL_TIMES)) or 0) + 1)
            found[TIMER_ROLLED_FROM] = str(rolled_from)
        else:
            found.pop(TIMER_ROLLED_FROM, None)
        found[TIMER_DEQUEUE_MS] = str(now_ms)
        return encode_stored_properties(found)
    times = item(TIMER_ENQUEUE_MS, str(enqueue_ms)) + item(TIMER_DEQUEUE_MS, str(now_ms))
    return joined(properties, times.encode())
