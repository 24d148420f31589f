"""Revival of popped messages that were not acknowledged in time (PopReviveService).

Check points and acknowledgements appear in the queues of the revive topic when they are due. Each queue is read
once, in order. A check point is processed after everything that may acknowledge it has been read; messages still
open then are copied to the group's retry topic. The group's offset in the revive queue advances when the copies
are on disk, so after a crash at any point every message comes back at least once.

Facts: docs/rocketmq/pop.md#revival.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.base.propertystring import find_property
from mqspark.base.shares import NOBODY
from mqspark.broker.pop.foreignchecks import found_record, is_at, pull_question
from mqspark.broker.pop.revivelog import (
    ACK_INTERVAL_MS,
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_TAG,
    CheckKey,
    CheckPoint,
    ReviveLog,
    parse_ack,
    parse_check_point,
)
from mqspark.broker.service import READ_BYTES, READ_MESSAGES, TICK_MS
from mqspark.broker.state.acks import Deferred
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Outlet
from mqspark.broker.statictopic.peers import Talk
from mqspark.errors import InvalidMessage, NotNow, StoreReadOnly
from mqspark.message import (
    FIRST_POP_TIME,
    ORIGIN_GROUP,
    RETRY_PREFIX,
    REVIVE_GROUP,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_ENQUEUE_MS,
    decode_properties,
    encode_stored_properties,
    parse_number,
)
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.receipts import normal_topic, retry_topic_v1, retry_topic_v2
from mqspark.record.batchitems import item_bytes
from mqspark.record.record import (
    MAX_RECONSUME_TIMES,
    Parts,
    Verdict,
    check_members,
    check_record,
    is_inner_batch,
    parts_at,
    take_apart,
    take_members,
)
from mqspark.record.recordlayout import spans
from mqspark.store.messages.fetch import GetStatus

_log = sparing(__name__)

GRACE_MS = ACK_INTERVAL_MS + 1_000
"""A check point is processed when the records read are this much later than its time, because timed messages of
one second come in any order."""

IDLE_MS = 3_000
"""When no timed message was late for this long, no earlier record can still arrive."""
MAX_GAP_MS = 2_000
"""After a pause of the process or a forward clock step, late messages may not have been noticed yet."""

READS_A_TICK = 2
"""Reads of all queues in one tick, about 130 records: some two milliseconds."""
REVIVES_A_TICK = 48
"""Messages revived in one tick: the same."""
MAX_OPEN = 50_000
"""Check points of one queue in memory. They arrive when they are due, so these cover three seconds."""
MAX_AWAY = 64
"""Check points whose messages are being asked for at brokers of other names."""
MAX_EARLY_ACKS = 10_000
"""The most in one queue. One user has no more than a share of them in all queues."""
MAX_EARLY_OFFSETS = 64
"""Offsets of one check point, which has no more messages."""
EARLY_BYTES = 300 + 100 * MAX_EARLY_OFFSETS
_OPEN_BYTES = 600
"""What a check point weighs with its heap entry."""

_RE_PUT_DELAYS_MS = tuple(
    1000 * seconds
    for seconds in (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)


@dataclass(slots=True)
class EarlyAck:
    until_ms: int
    """The horizon from which it may be dropped."""
    offsets: set[int]


class ReviveQueue:
    """How far one queue has been read and processed."""

    __slots__ = (
        "by_time",
        "early_acks",
        "horizon_ms",
        "idle_since_ms",
        "last_read_ms",
        "looked_ms",
        "next_offset",
        "open",
        "queue_id",
    )

    def __init__(self, queue_id: int, next_offset: int, now_ms: int, ledger: Ledger) -> None:
        self.queue_id = queue_id
        self.next_offset = next_offset
        """Offset of the next record to read."""
        self.open: BoundedMap[CheckKey, CheckPoint] = ledger.map(_OPEN_BYTES, _diff_bytes)
        """Unprocessed check points in the order of the queue."""
        self.by_time: list[tuple[int, int, CheckKey]] = []
        """A heap of (revive time, revive offset, key). An entry is stale if its offset differs from the open
        check point's."""
        self.early_acks: BoundedMap[CheckKey, EarlyAck] = ledger.map(EARLY_BYTES)
        """Acknowledgements that arrived before their check points."""
        self.horizon_ms = 0
        """Wall time up to which all due records have been read."""
        self.last_read_ms = now_ms
        """Monotonic."""
        self.idle_since_ms = now_ms
        """Monotonic time since which no timed message has been late."""
        self.looked_ms = 0
        """Wall time of that check."""


class _Share:
    """The work that one tick may still do."""

    __slots__ = ("reads", "revives")

    def __init__(self) -> None:
        self.reads = READS_A_TICK
        self.revives = REVIVES_A_TICK

    @property
    def is_used(self) -> bool:
        return self.reads <= 0 or self.revives <= 0


class PopRevival:
    """``timer_is_idle`` says that no timed message is late."""

    def __init__(
        self,
        state: BrokerState,
        log: ReviveLog,
        durably: Deferred,
        timer_is_idle: Callable[[], bool],
        outlet: Outlet | None = None,
    ) -> None:
        """``outlet``: where the copies go, for whose positions ``durably`` waits; None: the log here."""
        self._state = state
        self._outlet: Outlet = outlet or state.writer
        self._log = log
        self._durably = durably
        self._timer_is_idle = timer_is_idle
        self._host = state.store.store_host
        self.ledger = Ledger(
            "revivals",
            Limit(state.config, "max_pop_table_bytes"),
            "ReviveQueue.by_time",
            "CheckPoint.diffs",
            most=MAX_EARLY_ACKS,
        )
        self._queues: list[ReviveQueue] = []
        self._away: set[tuple[int, int]] = set()
        """(revive queue, revive offset) of open check points whose messages are at brokers of other names."""
        self._first = 0
        """The place of the queue with which the last tick began."""
        self._last_end = 0

    def load(self) -> None:
        state, topic = self._state, self._log.topic
        self._log.fit_topic()
        now_ms = state.clock.monotonic_ms()
        for queue_id in range(self._log.queues):
            done = state.offsets.query(REVIVE_GROUP, topic, queue_id)
            # A crash may have cut the log before this offset; everything past the log's end is then new.
            next_offset = min(done + 1, max(0, state.store.offsets.max_offset(topic, queue_id)))
            self._queues.append(ReviveQueue(queue_id, next_offset, now_ms, self.ledger))

    def tick(self) -> int:
        """Returns the ms until the next call. Each call begins with another queue, so that one with much to do leaves
        the others their share."""
        share = _Share()
        queues, self._first = self._queues, (self._first + 1) % max(1, len(self._queues))
        for queue in (*queues[self._first :], *queues[: self._first]):
            self._advance(queue, share)
            if share.is_used:
                return 0
        return TICK_MS

    def behind(self) -> list[tuple[int, int]]:
        """For each revive queue: the number of unprocessed records, and for how many ms the oldest has been due."""
        state, topic = self._state, self._log.topic
        store, now_ms = state.store, state.clock.now_ms()
        found = []
        for queue in self._queues:
            queue_id = queue.queue_id
            done = max(
                state.offsets.query(REVIVE_GROUP, topic, queue_id) + 1,
                store.offsets.min_offset(topic, queue_id),
            )
            records = max(0, store.offsets.max_offset(topic, queue_id) - done)
            since_ms = store.offsets.store_timestamp_at(topic, queue_id, done) if records else -1
            found.append((records, max(0, now_ms - since_ms) if since_ms > 0 else 0))
        return found

    # --- reading ---

    def _advance(self, queue: ReviveQueue, share: _Share) -> None:
        """Read and process, until there is nothing more to do at once or the tick's share is used."""
        self._go_back(queue)
        while True:
            revived = self._judge(queue, share.revives)
            if revived is None:
                return
            share.revives -= revived
            if share.is_used:
                return
            if not self._read(queue):
                break
            share.reads -= 1
        self._look(queue)

    def _go_back(self, queue: ReviveQueue) -> None:
        """If the clock has gone back, so does the horizon: what is due until the clock is there again is not read
        yet."""
        now_ms = self._state.clock.now_ms()
        if queue.horizon_ms > now_ms:
            queue.horizon_ms = now_ms
            for early in queue.early_acks.values():
                early.until_ms = min(early.until_ms, now_ms + GRACE_MS)

    def _look(self, queue: ReviveQueue) -> None:
        """If no timed message has been late since, everything due some time ago has been read. Not everything due
        now: a message may just have left the timer and not be visible yet."""
        now_ms, mono_ms = self._state.clock.now_ms(), self._state.clock.monotonic_ms()
        has_jumped = now_ms - queue.looked_ms > MAX_GAP_MS
        queue.looked_ms = now_ms
        if has_jumped or not self._timer_is_idle():
            queue.idle_since_ms = mono_ms
        elif mono_ms - max(queue.idle_since_ms, queue.last_read_ms) > IDLE_MS:
            queue.horizon_ms = now_ms
        elif mono_ms - queue.idle_since_ms > IDLE_MS and len(queue.open) < MAX_OPEN:
            queue.horizon_ms = max(queue.horizon_ms, now_ms - IDLE_MS)

    def _read(self, queue: ReviveQueue) -> bool:
        """Read one run of records. False if there is none, or no room for more."""
        if (
            max(len(queue.open), len(queue.by_time) // 2) >= MAX_OPEN
            or self.ledger.bytes >= self.ledger.bound
        ):
            return False
        store = self._state.store
        topic, queue_id = self._log.topic, queue.queue_id
        result = store.reads.get(topic, queue_id, queue.next_offset, READ_MESSAGES, READ_BYTES)
        if result.status is GetStatus.FOUND:
            for buffer in result.buffers:
                for begin, end in spans(buffer):
                    record = parts_at(buffer, begin, end)
                    if record is not None:
                        self._take(queue, record)
            queue.last_read_ms = self._state.clock.monotonic_ms()
        elif result.next_offset == queue.next_offset or result.max_offset == 0:
            return False
        queue.next_offset = result.next_offset
        if not queue.open:
            self._commit(queue)
        return True

    def _take(self, queue: ReviveQueue, record: Parts) -> None:
        properties = record.properties
        tag = (find_property(properties, TAGS.encode()) or b"").decode("utf-8", "replace")
        broker_name = self._state.config.broker_name
        try:
            if tag == CK_TAG:
                check_point = parse_check_point(record.body, broker_name)
                check_point.revive_offset = record.queue_offset
                self._check_time(check_point, record)
                self._count(queue, check_point.key, CK_TAG)
                self._close(queue, check_point.key)
                queue.open.keep(check_point.key, check_point)
                place = check_point.revive_time_ms, check_point.revive_offset, check_point.key
                heapq.heappush(queue.by_time, place)
                for offset in self._pop_early(queue, check_point.key):
                    check_point.ack(offset)
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                key, offsets = parse_ack(record.body, broker_name)
                self._count(queue, key, ACK_TAG)
                open_check_point = queue.open.get(key)
                if open_check_point is not None:
                    for offset in offsets:
                        open_check_point.ack(offset)
                else:
                    self._keep_early(queue, key, offsets)
        except (InvalidMessage, ValueError, RecursionError) as error:
            self._pass_over(queue, record.queue_offset, error)
        due_ms = parse_number(find_property(properties, TIMER_DELIVER_MS.encode())) or 0
        entered_ms = parse_number(find_property(properties, TIMER_ENQUEUE_MS.encode())) or 0
        # Records that were already due were stored at once, possibly before earlier ones that are still in the
        # timer.
        if 0 < entered_ms <= record.store_timestamp_ms:
            # RocketMQ's timer delivers up to a second early.
            queue.horizon_ms = max(queue.horizon_ms, min(due_ms, record.store_timestamp_ms))

    def _pass_over(self, queue: ReviveQueue, offset: int, why: Exception) -> None:
        """A record that is not valid for POP: forged by a client of an earlier version, or damaged on disk."""
        self._state.stats.junk["revive"] += 1
        _log.error("revive queue %d, offset %d is skipped: %s", queue.queue_id, offset, why)

    def _check_time(self, check_point: CheckPoint, record: Parts) -> None:
        """Raises InvalidMessage for a check point whose time was impossible when it was stored: it would block
        the group's offset until that time."""
        ahead_ms = check_point.revive_time_ms - record.store_timestamp_ms
        longest_ms = self._state.store_config.timer_max_delay_sec * 1000 + GRACE_MS
        if ahead_ms > longest_ms:
            raise InvalidMessage(
                f"its messages would be invisible for {ahead_ms} ms more, the longest is {longest_ms}",
                field="it",
            )

    def _count(self, queue: ReviveQueue, key: CheckKey, kind: str) -> None:
        if self._state.topics.get(key.topic) is None or key.group not in self._state.subscriptions:
            return
        read = self._state.stats.revival(key.topic, key.group).read
        place = queue.queue_id, kind
        read[place] = read.get(place, 0) + 1

    def _keep_early(self, queue: ReviveQueue, key: CheckKey, offsets: Iterable[int]) -> None:
        """Timed messages of one second come in any order."""
        early = queue.early_acks
        if key not in early:
            if not self._is_wanted(key):
                return
            self._forget_early(queue)
            holder, ack = self._holder(key), EarlyAck(queue.horizon_ms + GRACE_MS, set())
            if len(early) >= MAX_EARLY_ACKS or not early.has_room_for(key, ack, holder):
                return
            early.keep(key, ack, holder)
        known = early[key].offsets
        if len(known) < MAX_EARLY_OFFSETS:
            known.update(offsets)

    def _forget_early(self, queue: ReviveQueue) -> None:
        """Those that are over are the oldest: when the horizon goes back, so do they. Looking at all of them for each
        new one would cost the square of their number."""
        over = itertools.takewhile(
            lambda key: queue.early_acks[key].until_ms <= queue.horizon_ms, queue.early_acks
        )
        for key in list(over):
            self._pop_early(queue, key)

    def _pop_early(self, queue: ReviveQueue, key: CheckKey) -> Iterable[int]:
        if key not in queue.early_acks:
            return ()
        return queue.early_acks.pop(key).offsets

    def _holder(self, key: CheckKey) -> str:
        """The user for whom an early acknowledgement is counted. Records name no user, but a group, which has one or is
        an operator's."""
        if self.ledger.shares.holders is None:
            return NOBODY
        return self._state.subscriptions.owner_of(key.group) or f"Group:{key.group}"

    def _close(self, queue: ReviveQueue, key: CheckKey) -> None:
        queue.open.pop(key, None)

    # --- processing ---

    def _judge(self, queue: ReviveQueue, most: int) -> int | None:
        """Revive the open messages of the first check points, up to about ``most``. Returns their number; None:
        not now."""
        revived = 0
        horizon_ms = min(queue.horizon_ms, self._state.clock.now_ms())
        while queue.by_time and revived < most:
            revive_ms, revive_offset, key = queue.by_time[0]
            if horizon_ms - revive_ms <= GRACE_MS:
                break
            check_point = queue.open.get(key)
            if check_point is not None and check_point.revive_offset == revive_offset:
                offsets = check_point.unacked()
                if offsets and self._is_foreign(key) and self._is_wanted(key):
                    if not self._send_for(queue, check_point):
                        return revived or None
                    heapq.heappop(queue.by_time)
                    revived += 1
                    continue
                try:
                    copies = self._revive(queue, check_point, offsets, most - revived)
                except (Refusal, StoreReadOnly, NotNow) as error:
                    _log.error("messages of %s cannot be revived now: %s", key.topic, error)
                    return None
                except InvalidMessage as error:
                    self._pass_over(queue, revive_offset, error)
                    copies = len(offsets)
                else:
                    if copies >= most - revived and check_point.unacked():
                        revived += copies  # the rest of it comes in the next tick
                        break
                self._close(queue, key)
                revived += 1 + copies
            heapq.heappop(queue.by_time)
        if revived:
            self._commit(queue)
        return revived

    def _commit(self, queue: ReviveQueue) -> None:
        """Everything before the first open check point, or everything read if none is open, is done once the log
        is on disk up to its present end."""
        first = next(iter(queue.open.values()), None)
        done = (queue.next_offset if first is None else first.revive_offset) - 1
        if done >= 0:
            self._durably.when(self._last_end, lambda is_durable: self._finished(queue, done, is_durable))

    def _finished(self, queue: ReviveQueue, done: int, is_durable: bool) -> None:
        """Everything up to the offset ``done`` needs no more work."""
        offsets, topic, queue_id = self._state.offsets, self._log.topic, queue.queue_id
        if is_durable and offsets.query(REVIVE_GROUP, topic, queue_id) != done:
            offsets.commit(REVIVE_GROUP, topic, queue_id, done, is_brokers=True)

    def _revive(self, queue: ReviveQueue, check_point: CheckPoint, offsets: Sequence[int], most: int) -> int:
        """Returns the number of copies; an offset without one counts, too. After ``most`` the others stay open."""
        if not offsets or not self._is_wanted(check_point.key):
            check_point.acked = -1
            return len(offsets)
        copies = 0
        for offset in offsets:
            record = self._original(check_point.key, offset)
            copies += self._revive_one(queue, check_point, offset, record, most - copies)
            if copies >= most:
                break
        return copies

    def _is_wanted(self, key: CheckKey) -> bool:
        """Whether neither the topic nor the group was deleted."""
        state = self._state
        return (
            state.topics.get(normal_topic(key.topic, key.group)) is not None
            and state.subscriptions.configured(key.group) is not None
        )

    def _revive_one(
        self, queue: ReviveQueue, check_point: CheckPoint, offset: int, record: Parts | None, most: int
    ) -> int:
        """``record``: None if it has expired in the meantime. Returns the number of copies, at least 1. The offset
        stays open when it is that of an inner batch with more than ``most`` members left."""
        copies = 1
        if record is not None:
            try:
                if is_inner_batch(record):
                    copies = max(1, self._copy_members(queue, check_point, offset, record, most))
                    if check_point.part[0] == offset:
                        return copies
                else:
                    self._copy(check_point.key, record)
            except InvalidMessage as error:
                _log.warning("message %d of %s is revived later: %s", offset, check_point.key.topic, error)
                self._put_back(queue, check_point, offset)
        check_point.ack(offset)  # not copied again if a later message has to wait
        return copies

    def _original(self, key: CheckKey, offset: int) -> Parts | None:
        result = self._state.store.reads.get(key.topic, key.queue_id, offset, 1, 1)
        if result.status is not GetStatus.FOUND:
            return None
        (buffer,) = result.buffers
        record = check_record(buffer, 0, len(buffer), verify_crc=False)
        if record.verdict is not Verdict.VALID:
            return None
        parts = take_apart(buffer)
        return parts if is_at(parts, offset) else None

    # --- messages of brokers of other names, whose acting slaves handed them out ---

    def _is_foreign(self, key: CheckKey) -> bool:
        config = self._state.config
        return key.broker_name != config.broker_name and config.enable_slave_acting_master

    def _send_for(self, queue: ReviveQueue, check_point: CheckPoint) -> bool:
        """Ask their broker for the open messages. False: not now."""
        place = queue.queue_id, check_point.revive_offset
        if len(self._away) >= MAX_AWAY:
            return False
        self._away.add(place)
        if not self._state.peers.begin(self._fetch(queue, check_point)):
            self._away.discard(place)
            return False
        return True

    def _fetch(self, queue: ReviveQueue, check_point: CheckPoint) -> Talk:
        """Revive message by message. What their broker does not give now is asked for later. A large inner batch is
        asked for again after each part of it, so that others get their turn."""
        key, place = check_point.key, (queue.queue_id, check_point.revive_offset)
        record: Parts | None = None
        try:
            while offsets := check_point.unacked():
                try:
                    answer = yield pull_question(key, offsets[0])
                    record = found_record(answer, key, offsets[0])
                except (Refusal, NotNow) as error:
                    if record is None or check_point.part[0] != offsets[0]:
                        _log.warning("messages of %s are revived later: %s", key.topic, error)
                        self._put_back(queue, check_point, *offsets)
                        break
                self._revive_one(queue, check_point, offsets[0], record, REVIVES_A_TICK)
        except (Refusal, StoreReadOnly, NotNow, InvalidMessage) as error:
            _log.error("messages of %s cannot be revived now: %s", key.topic, error)
            if queue.open.get(key) is check_point:
                heapq.heappush(queue.by_time, (check_point.revive_time_ms, check_point.revive_offset, key))
            return None
        finally:
            self._away.discard(place)
        if queue.open.get(key) is check_point:
            self._close(queue, key)
        self._commit(queue)
        return None

    def _copy_members(
        self, queue: ReviveQueue, check_point: CheckPoint, offset: int, record: Parts, most: int
    ) -> int:
        """Copy an inner batch, which the retry topic's queues cannot hold, message by message: the next ``most`` of
        them, or the only one that the offset means when it is not the batch's. Returns the number of copies.

        A message that cannot be copied is put back alone, so that its failures do not repeat the others. That needs
        an offset that is not the batch's, so the first one raises InvalidMessage, like a damaged batch."""
        key = check_point.key
        if (number := offset - record.queue_offset) > 0:
            for member in take_members(record, 0, 0, number + 1)[number:]:
                self._copy(key, member)
            return 1
        begun, index, position = check_point.part
        if begun != offset:
            index = position = 0
            check_members(record)
        members = take_members(record, index, position, most)
        for member in members:
            try:
                self._copy(key, member)
            except InvalidMessage as error:
                if not index:
                    raise
                _log.warning("message %d of %s is revived later: %s", offset + index, key.topic, error)
                self._put_back(queue, check_point, offset + index)
            index += 1
            position += item_bytes(member.body, member.properties)
            check_point.part = offset, index, position
        if position >= len(record.body):
            check_point.part = -1, 0, 0
        return len(members)

    def _copy(self, key: CheckKey, record: Parts) -> None:
        """Copy the message to the retry topic. The first pop time stays the original one."""
        topic, queue_id = self._retry_queue(key, record.queue_id)
        table = decode_properties(record.properties)
        if record.reconsume_times == 0 or FIRST_POP_TIME not in table:
            table[FIRST_POP_TIME] = str(key.pop_time_ms)
        table[ORIGIN_GROUP] = key.group  # RocketMQ finds waiting pops by it
        properties = encode_stored_properties(table)
        times = min(max(0, record.reconsume_times) + 1, MAX_RECONSUME_TIMES)
        copy = record._replace(born_host=self._host, reconsume_times=times)
        stored = self._outlet.relay(copy, topic, queue_id, properties)
        self._last_end = max(self._last_end, stored.end_offset)
        self._state.stats.revival(key.topic, key.group).revived += 1

    def _retry_name(self, key: CheckKey) -> str:
        topic = key.topic
        if not topic.startswith(RETRY_PREFIX):
            name = retry_topic_v2 if self._state.config.enable_retry_topic_v2 else retry_topic_v1
            topic = name(topic, key.group)
        return topic

    def _retry_queue(self, key: CheckKey, queue_id: int) -> tuple[str, int]:
        """Where a message of queue ``queue_id`` is retried. The topic is created when it is first needed, and with a
        queue of its own for each queue of the topic it grows with that; the group starts at the first message."""
        topic, state = self._retry_name(key), self._state
        if state.config.use_separate_retry_queue:
            of = state.topics.get(normal_topic(topic, key.group))
            queues = 1 if of is None else max(1, of.write_queue_nums)
            retries = state.topics.ensure(topic, queues)
            if min(retries.read_queue_nums, retries.write_queue_nums) < queues:
                state.topics.adopt(topic, queues)
            if queue_id >= queues:  # the topic has been made smaller
                queue_id = 0
        else:
            state.topics.ensure(topic, 1)
            queue_id = 0
        if state.offsets.query(key.group, topic, queue_id) < 0:
            state.offsets.commit(key.group, topic, queue_id, 0)
        return topic, queue_id

    def _put_back(self, queue: ReviveQueue, check_point: CheckPoint, offset: int, *more: int) -> None:
        """Store a check point for messages whose copies could not be stored."""
        key = check_point.key._replace(start_offset=offset)
        diffs = [0, *(other - offset for other in more)]
        tries = check_point.re_puts
        invisible_ms = check_point.invisible_time_ms
        if check_point.revive_time_ms <= self._state.clock.now_ms():
            # Not beyond the timer's maximum delay, which the timer would always refuse.
            longest_ms = self._state.store_config.timer_max_delay_sec * 1000
            invisible_ms += min(_RE_PUT_DELAYS_MS[min(tries, len(_RE_PUT_DELAYS_MS) - 1)], longest_ms)
        again = CheckPoint(key, invisible_ms, diffs, re_puts=tries + 1)
        self._last_end = max(self._last_end, self._log.put_check_point(queue.queue_id, again))


def _diff_bytes(check_point: CheckPoint) -> int:
    return 40 * len(check_point.diffs)
