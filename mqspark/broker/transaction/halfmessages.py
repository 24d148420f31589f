"""Half messages as values: the form of a transactional message in each state, which messages are decided, and the
result of a check (TransactionalMessageBridge, TransactionalMessageServiceImpl).

    half       what the producer sent, in RMQ_SYS_TRANS_HALF_TOPIC with its real topic and queue among the properties
    op         in RMQ_SYS_TRANS_OP_HALF_TOPIC: the queue offsets of half messages that are decided
    committed  the message in its real queue, with the offset of the half message

A half message that has to be checked is stored again at the end of its queue, so that it does not block later
ones. A transaction is thus a chain of copies, of which the last one counts. All copies have the same
``Identity``. Must not know the store, sockets or time.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from mqspark.broker.state.writer import Draft
from mqspark.message import (
    CRC32,
    DELAYS,
    HOST_FLAGS,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRANS_HALF_TOPIC,
    TRANSACTION_BATCH,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_FIRST_OFFSET,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    decode_properties,
)
from mqspark.record.record import Parts

IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_ID = "__transactionId__"


class Identity(NamedTuple):
    """What all copies of one half message share, and different attempts to send it do not."""

    unique_id: str
    born_timestamp_ms: int
    born_host: bytes


class Half:
    """A half message as stored."""

    __slots__ = ("parts", "properties")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.properties = decode_properties(parts.properties)
        self.properties.pop(CRC32, None)  # of this record

    @property
    def offset(self) -> int:
        return self.parts.queue_offset

    @property
    def real_topic(self) -> str:
        return self.properties.get(REAL_TOPIC, "")

    @property
    def group(self) -> str | None:
        return self.properties.get(PRODUCER_GROUP)

    @property
    def unique_id(self) -> str:
        return self.properties.get(UNIQ_KEY, "")

    @property
    def identity(self) -> Identity:
        return Identity(self.unique_id, self.parts.born_timestamp_ms, self.parts.born_host)

    @property
    def is_copy(self) -> bool:
        return TRANSACTION_CHECK_TIMES in self.properties or TRANSACTION_FIRST_OFFSET in self.properties

    @property
    def is_resumed(self) -> bool:
        """It was given up, and an operator wants it checked again."""
        return (
            self.properties.get(TRANSACTION_CHECK_TIMES) == "0"
            and TRANSACTION_FIRST_OFFSET not in self.properties
        )

    @property
    def first_offset(self) -> int | None:
        """Set on a copy made while it was immune."""
        return _integer(self.properties.get(TRANSACTION_FIRST_OFFSET))

    @property
    def real_queue(self) -> tuple[str, int] | None:
        topic, queue_id = self.properties.get(REAL_TOPIC), _integer(self.properties.get(REAL_QUEUE_ID))
        return None if topic is None or queue_id is None or not 0 <= queue_id < 1 << 31 else (topic, queue_id)

    @property
    def is_batch(self) -> bool:
        """It holds many messages (``mqspark.broker.transaction.halfbatches``) and is never checked."""
        return TRANSACTION_BATCH in self.properties

    @property
    def check_count(self) -> int:
        text = self.properties.get(TRANSACTION_CHECK_TIMES)
        number = _integer(text)
        return 0 if text is None else -1 if number is None else number

    def immunity_ms(self, timeout_ms: int) -> tuple[int, bool]:
        """How long after its birth it is not checked, and whether the producer set that time."""
        text = self.properties.get(IMMUNITY_SECONDS)
        if text is None:
            return timeout_ms, False
        seconds = _integer(text)
        return (timeout_ms if seconds is None or seconds == -1 else seconds * 1000), True

    def is_late(self, now_ms: int, timeout_ms: int) -> bool:
        """Whether the producer's own immunity time has passed; then only a check decides."""
        text = self.properties.get(IMMUNITY_SECONDS)
        if not text:
            return False
        limit_ms = max((_integer(text) or 0) * 1000, timeout_ms)
        return now_ms - self.parts.born_timestamp_ms > limit_ms

    def is_older(self, now_ms: int, age_ms: int) -> bool:
        return now_ms - self.parts.born_timestamp_ms > age_ms

    def is_unborn(self, now_ms: int, age_ms: int) -> bool:
        """Whether it was born further ahead than that, by the clock of its producer, who may lie: such a message would
        not be old for as long as the producer likes."""
        return self.parts.born_timestamp_ms - now_ms > age_ms

    def committed(self) -> Draft | None:
        """The message that consumers will see; None if the half message does not name its target.

        In the form of RocketMQ 5.5. (5.3 keeps the real topic and queue among the properties.)
        """
        target = self.real_queue
        if target is None:
            return None
        parts = self.parts
        properties = {
            name: value for name, value in self.properties.items() if name not in (REAL_TOPIC, REAL_QUEUE_ID)
        }
        if not DELAYS.isdisjoint(properties):
            # The message is delayed first; RocketMQ drops the property only from such a message.
            properties.pop(TRANSACTION_PREPARED, None)
        return Draft(
            target[0],
            target[1],
            parts.body,
            properties,
            parts.born_timestamp_ms,
            parts.born_host,
            parts.sys_flag & ~(TRANSACTION_MASK | HOST_FLAGS) | TRANSACTION_COMMIT_TYPE,
            parts.flag,
            parts.reconsume_times,
            parts.physical_offset,
            is_commit=True,
        )

    def checked_properties(self) -> dict[str, str]:
        """Properties of the copy that a check is sent for."""
        return {**self.properties, TRANSACTION_CHECK_TIMES: str(self.check_count + 1)}

    def resumed_properties(self) -> dict[str, str]:
        """Properties of a message that was given up and will be checked again."""
        kept = {name: value for name, value in self.properties.items() if name != TRANSACTION_FIRST_OFFSET}
        return {**kept, TRANSACTION_CHECK_TIMES: "0"}

    def immune_properties(self) -> dict[str, str]:
        """Properties of the copy of a message that is still immune. RocketMQ counts such copies as checks, so it
        can give up a transaction before its first check; here they are not counted."""
        first = self.properties.get(TRANSACTION_FIRST_OFFSET, str(self.offset))
        return {**self.properties, TRANSACTION_FIRST_OFFSET: first}


def divert_prepared(draft: Draft) -> None:
    """Turn a producer's message into a half message, which the broker has not checked yet."""
    properties = draft.properties
    for name in (TRANSACTION_CHECK_TIMES, TRANSACTION_FIRST_OFFSET):
        properties.pop(name, None)
    unique_id = properties.get(UNIQ_KEY)
    if unique_id:
        properties[TRANSACTION_ID] = unique_id
    properties[REAL_TOPIC] = draft.topic
    properties[REAL_QUEUE_ID] = str(draft.queue_id)
    draft.sys_flag &= ~TRANSACTION_MASK
    draft.topic = TRANS_HALF_TOPIC
    draft.queue_id = 0


# --- checks -------------------------------------------------------------------------------------------------


class Rules(NamedTuple):
    timeout_ms: int
    check_max: int
    reserved_ms: int
    """Older half messages are given up."""
    keep_from: int = 0
    """A batch before this log position is stored again, to limit how much a start has to read."""


class HalfDecision(enum.Enum):
    WAIT = "wait"
    """Too young, like everything that follows."""
    RENEW = "renew"
    """Still immune: store it again without a check."""
    CHECK = "check"
    """Store it again and ask a producer of the group."""
    GIVE_UP = "give up"
    KEEP = "keep"
    """Leave it in place and continue behind it."""


def judge(half: Half, now_ms: int, rules: Rules) -> HalfDecision:
    age_ms = now_ms - half.parts.born_timestamp_ms
    if half.check_count >= rules.check_max or half.is_older(now_ms, rules.reserved_ms):
        return HalfDecision.GIVE_UP
    is_unborn = half.is_unborn(now_ms, rules.reserved_ms)
    if half.is_batch:
        if is_unborn:
            return HalfDecision.GIVE_UP
        return HalfDecision.KEEP if half.parts.physical_offset >= rules.keep_from else HalfDecision.RENEW
    immunity_ms, is_explicit = half.immunity_ms(rules.timeout_ms)
    if is_explicit and age_ms <= immunity_ms and not is_unborn:
        return HalfDecision.RENEW
    if not is_explicit and 0 <= age_ms <= immunity_ms:
        return HalfDecision.WAIT
    return HalfDecision.CHECK


# --- decisions --------------------------------------------------------------------------------------------


class Decisions:
    """Whether each half message from ``base`` on is decided; earlier ones are finished.

    One byte per message. ``base`` advances over decided messages and over those that were stored again.
    """

    def __init__(self, base: int, op_base: int) -> None:
        self.base = base
        self.op_base = op_base
        """The first op message that names an unfinished half message."""
        self._flags = bytearray()
        self._extents: deque[tuple[int, int]] = deque()
        """(offset of an op message, highest half offset in it) from ``op_base`` on."""

    def __len__(self) -> int:
        return len(self._flags)

    @property
    def decided_count(self) -> int:
        """Counts messages from ``base`` on."""
        return self._flags.count(1)

    def is_decided(self, offset: int) -> bool:
        index = offset - self.base
        return index < 0 or (index < len(self._flags) and self._flags[index] != 0)

    def next_open(self, offset: int) -> int:
        """The first undecided message from ``offset`` on."""
        index = max(offset - self.base, 0)
        found = self._flags.find(0, index)
        return self.base + (found if found >= 0 else max(index, len(self._flags)))

    def decide(self, offset: int) -> bool:
        """False if it was decided already."""
        index = offset - self.base
        if index < 0:
            return False
        if index >= len(self._flags):
            self._flags.extend(bytes(index + 1 - len(self._flags)))
        elif self._flags[index]:
            return False
        self._flags[index] = 1
        return True

    def note_op(self, op_offset: int, offsets: Iterable[int]) -> None:
        """An op message was stored; it is needed as long as one of its half messages may be read again."""
        self._extents.append((op_offset, max(offsets, default=-1)))
        self._drop_ops()

    def pass_to(self, offset: int) -> None:
        """Everything before ``offset`` is finished."""
        if offset > self.base:
            del self._flags[: offset - self.base]
            self.base = offset
            self._drop_ops()

    def _drop_ops(self) -> None:
        extents = self._extents
        while extents and extents[0][1] < self.base:
            self.op_base = extents.popleft()[0] + 1


# --- op messages --------------------------------------------------------------------------------------------


def op_body(offsets: Iterable[int], max_chars: int) -> tuple[bytes, list[int]]:
    """The body of one op message, ``off1,off2,…,``, and those of ``offsets`` that it holds: the first ones, up to
    ``max_chars`` characters."""
    taken: list[int] = []
    texts: list[str] = []
    chars = 0
    for offset in offsets:
        taken.append(offset)
        texts.append(f"{offset},")
        chars += len(texts[-1])
        if chars >= max_chars:
            break
    return "".join(texts).encode(), taken


def op_offsets(body: bytes | memoryview) -> list[int]:
    """The offsets in an op message; malformed words are skipped. (Before 5.0 an op message held one offset
    without a comma.)"""
    words = bytes(body).split(b",")
    return [int(word) for word in words if word.isdigit() and len(word) < 20]


def _integer(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 18:
        return None
    return int(text)
