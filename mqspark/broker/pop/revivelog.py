"""POP's state as messages of a system topic: check points (messages handed out) and acknowledgements
(PopCheckPoint, AckMsg, BatchAckMsg).

They are timed messages. A check point appears in the revive topic one second before its messages become visible
again, its acknowledgements at that very time, so a reader of the topic sees only due records.

Facts: docs/rocketmq/pop.md#check-points.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from mqspark.base.shares import NOBODY
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft
from mqspark.broker.tables.topics import copy_config
from mqspark.errors import InvalidMessage, ProtocolError
from mqspark.message import REVIVE_LOG_PREFIX, TAGS, TIMER_DELIVER_MS, UNIQ_KEY, parse_number
from mqspark.protocol.bodies.body import Body, decode_body
from mqspark.protocol.session import Session

CK_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"

MAX_EMPTY_QUEUES = 256
"""Queues of the revive topic that need no records and no setting to be visited."""

ACK_INTERVAL_MS = 1_000
"""A check point is due this much before its acknowledgements (PopAckConstants.ackTimeInterval)."""


class CheckKey(NamedTuple):
    """The key of a check point; acknowledgements carry it."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    broker_name: str


class CheckPoint:
    """Messages of one queue that were handed out together. Bit i of ``acked`` is set when message i is
    acknowledged."""

    __slots__ = ("acked", "diffs", "invisible_time_ms", "key", "part", "re_puts", "revive_offset")

    def __init__(
        self, key: CheckKey, invisible_time_ms: int, diffs: Sequence[int], *, acked: int = 0, re_puts: int = 0
    ) -> None:
        self.key = key
        self.invisible_time_ms = invisible_time_ms
        self.diffs = diffs
        """Queue offsets relative to the start offset."""
        self.acked = acked
        self.re_puts = re_puts
        """How often it was stored again because its messages could not be revived."""
        self.revive_offset = -1
        self.part = (-1, 0, 0)
        """The offset of an inner batch of which only the first members have been copied, their number, and their bytes
        in its body."""

    @property
    def revive_time_ms(self) -> int:
        return self.key.pop_time_ms + self.invisible_time_ms

    def ack(self, offset: int) -> None:
        """Mark a message. Offsets of other messages are ignored."""
        try:
            self.acked |= 1 << self.diffs.index(offset - self.key.start_offset)
        except ValueError:
            return

    def unacked(self) -> list[int]:
        start = self.key.start_offset
        return [start + diff for index, diff in enumerate(self.diffs) if not self.acked >> index & 1]


class _ReviveBody(Body):
    """Both bodies, as fastjson writes them: names of one or two letters, or the full names in older records."""

    t: str | None = None
    c: str | None = None
    q: int | None = None
    so: int | None = None
    pt: int | None = None
    bn: str | None = None
    n: int = 0
    d: list[int] | None = None
    bm: int = 0
    it: int = 0
    rp: str | None = None
    ao: int | None = None
    aol: list[int] | None = None
    topic: str | None = None
    consumer_group: str | None = None
    queue_id: int = 0
    start_offset: int = 0
    pop_time: int = 0
    broker_name: str | None = None
    ack_offset: int = -1

    def key(self, broker_name: str) -> CheckKey:
        """``broker_name`` is this broker's; some records omit it."""
        topic = self.t if self.t is not None else self.topic
        group = self.c if self.c is not None else self.consumer_group
        if topic is None or group is None:
            raise InvalidMessage("a record of the revive log names no topic or group", field="body")
        return CheckKey(
            topic,
            group,
            self.q if self.q is not None else self.queue_id,
            self.so if self.so is not None else self.start_offset,
            self.pt if self.pt is not None else self.pop_time,
            self.bn or self.broker_name or broker_name,
        )


MAX_CHECK_POINT_MESSAGES = 64
"""Messages of one check point: RocketMQ keeps the acknowledged ones in the bits of a byte count and an int."""
MAX_REVIVE_BODY_BYTES = 16 << 10
"""Bytes of one record: the offsets of MAX_CHECK_POINT_MESSAGES messages, a topic, a group and a broker."""
_MAX_QUEUE_ID = 1 << 31
_MAX_NUMBER = 1 << 60
"""The limit of offsets and of ms since the epoch; the sum of two still fits into a long."""


def _parse(body: bytes | memoryview) -> _ReviveBody:
    if len(body) > MAX_REVIVE_BODY_BYTES:
        raise InvalidMessage(f"a record of the revive log of {len(body)} bytes", field="body")
    try:
        return decode_body(_ReviveBody, body)
    except ProtocolError as error:
        raise InvalidMessage(f"a record of the revive log: {error}", field="body") from None


def _check(what: str, number: int, most: int) -> None:
    if not 0 <= number < most:
        raise InvalidMessage(f"{what}={number} in a record of the revive log", field=what)


def _checked(key: CheckKey) -> CheckKey:
    _check("queueId", key.queue_id, _MAX_QUEUE_ID)
    _check("startOffset", key.start_offset, _MAX_NUMBER)
    _check("popTime", key.pop_time_ms, _MAX_NUMBER)
    return key


def parse_check_point(body: bytes | memoryview, broker_name: str) -> CheckPoint:
    """Raises InvalidMessage for numbers that no check point can have."""
    parsed = _parse(body)
    _check("n", parsed.n, MAX_CHECK_POINT_MESSAGES + 1)
    _check("it", parsed.it, _MAX_NUMBER)
    diffs: Sequence[int] = range(parsed.n) if not parsed.d else parsed.d[: parsed.n]
    acked = parsed.bm & ((1 << MAX_CHECK_POINT_MESSAGES) - 1)
    seen: set[int] = set()
    for index, diff in enumerate(diffs):
        _check("d", diff, _MAX_NUMBER)
        if diff in seen:  # ``CheckPoint.ack`` would never find it
            acked |= 1 << index
        seen.add(diff)
    return CheckPoint(
        _checked(parsed.key(broker_name)),
        parsed.it,
        diffs,
        acked=acked,
        re_puts=parse_number(parsed.rp) or 0,
    )


def parse_ack(body: bytes | memoryview, broker_name: str) -> tuple[CheckKey, list[int]]:
    """The check point's key and the acknowledged queue offsets. Raises InvalidMessage."""
    parsed = _parse(body)
    offsets = parsed.aol
    if offsets is None:
        offsets = [parsed.ao if parsed.ao is not None else parsed.ack_offset]
    _check("acknowledgements", len(offsets), MAX_CHECK_POINT_MESSAGES + 1)
    for offset in offsets:
        _check("ackOffset", offset, _MAX_NUMBER)
    return _checked(parsed.key(broker_name)), offsets


_quote = json.encoder.encode_basestring_ascii


class ReviveLog:
    """Stores check points and acknowledgements. Every method returns the end offset; callers must not rely on the
    record before that offset is acked. Raises what ``Writer.put`` raises."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._host = state.store.store_host
        self.topic = REVIVE_LOG_PREFIX + state.config.broker_cluster_name

    @property
    def queues(self) -> int:
        topic = self._state.topics.get(self.topic)
        return topic.write_queue_nums if topic is not None else self._state.config.revive_queue_num

    def fit_topic(self) -> None:
        """Give the topic all queues that have records, and of those that ``topics.json`` names beyond them a bounded
        number: every tick of the revival visits each."""
        state, topic = self._state, self._state.topics.get(self.topic)
        if topic is None:
            return
        stored = max(state.store.offsets.queue_ids(self.topic), default=-1) + 1
        most = max(MAX_EMPTY_QUEUES, state.config.revive_queue_num)
        queues = max(stored, min(topic.write_queue_nums, most))
        if (topic.read_queue_nums, topic.write_queue_nums) != (queues, queues):
            config = copy_config(topic.config)
            config.read_queue_nums = config.write_queue_nums = queues
            state.topics.put(config, needed=True)

    def put_check_point(
        self, revive_queue: int, check_point: CheckPoint, session: Session | None = None
    ) -> int:
        """``session``: who pops; None: the broker itself. Raises TableFull when its user has too many."""
        shares = self._state.check_points
        user = NOBODY if session is None else shares.admit(session)
        topic, group, queue_id, start, pop_time_ms, broker = key = check_point.key
        revive_ms = check_point.revive_time_ms
        diffs = ",".join(map(str, check_point.diffs))
        re_puts = f'"rp":"{check_point.re_puts}",' if check_point.re_puts else ""
        body = (
            f'{{"bm":{check_point.acked},"bn":{_quote(broker)},"c":{_quote(group)},"d":[{diffs}],'
            f'"it":{check_point.invisible_time_ms},"n":{len(check_point.diffs)},"pt":{pop_time_ms},"q":{queue_id},'
            f'"reviveTime":{revive_ms},"ro":0,{re_puts}"so":{start},"t":{_quote(topic)}}}'
        )
        end = self._put(revive_queue, key, start, CK_TAG, CK_TAG, body, revive_ms - ACK_INTERVAL_MS)
        shares.hold_until(user, revive_ms)
        return end

    def admit_ack(
        self, session: Session, revive_queue: int, key: CheckKey, invisible_time_ms: int, entries: int = 1
    ) -> str:
        """The user who will hold so many acknowledgements of a check point. Raises TableFull, and what ``put_ack``
        raises, when they could not be kept."""
        return self._state.acknowledgements.admit(session, entries=entries)

    def put_ack(
        self,
        revive_queue: int,
        key: CheckKey,
        invisible_time_ms: int,
        offsets: Sequence[int],
        owner: str = NOBODY,
    ) -> int:
        """``owner``: the user who holds the record, until the messages would have become visible again."""
        topic, group, queue_id, start, pop_time_ms, broker = key
        offset = offsets[0] if len(offsets) == 1 else -1
        several = "" if len(offsets) == 1 else f'"aol":[{",".join(map(str, offsets))}],'
        body = (
            f'{{"ao":{offset},{several}"bn":{_quote(broker)},"c":{_quote(group)},"pt":{pop_time_ms},'
            f'"q":{queue_id},"so":{start},"t":{_quote(topic)}}}'
        )
        tag = BATCH_ACK_TAG if several else ACK_TAG
        revive_ms = pop_time_ms + invisible_time_ms
        end = self._put(revive_queue, key, offset, tag, ACK_TAG, body, revive_ms)
        self._state.acknowledgements.hold_until(owner, revive_ms)
        self._state.stats.were_acked(topic, group, len(offsets))
        return end

    def _put(
        self,
        revive_queue: int,
        key: CheckKey,
        offset: int,
        tag: str,
        kind: str,
        body: str,
        deliver_ms: int,
    ) -> int:
        topic, group, queue_id, _, pop_time_ms, broker = key
        unique_id = f"{topic}@{queue_id}@{offset}@{group}@{pop_time_ms}@{broker}@{kind}"
        end = self._store(revive_queue, key, tag, unique_id, body.encode(), deliver_ms)
        put = self._state.stats.revival(topic, group).put
        put[kind] = put.get(kind, 0) + 1
        return end

    def _store(
        self, revive_queue: int, key: CheckKey, tag: str, unique_id: str, body: bytes, deliver_ms: int
    ) -> int:
        state = self._state
        stored = state.writer.put_timed(
            self.topic, revive_queue, body, tag, unique_id, deliver_ms, state.clock.now_ms(), self._host
        )
        return stored.end_offset


class RemoteLog(ReviveLog):
    """A revive log whose new records are stored elsewhere."""

    def _store(
        self, revive_queue: int, key: CheckKey, tag: str, unique_id: str, body: bytes, deliver_ms: int
    ) -> int:
        properties = {TAGS: tag, UNIQ_KEY: unique_id, TIMER_DELIVER_MS: str(deliver_ms)}
        draft = Draft(self.topic, revive_queue, body, properties, self._state.clock.now_ms(), self._host)
        return self._forward(draft, key, is_check_point=tag == CK_TAG)

    def _forward(self, draft: Draft, key: CheckKey, *, is_check_point: bool) -> int:
        raise NotImplementedError
