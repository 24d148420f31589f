"""The basic types: messages, queues, properties, ids, system flags, names, permissions.

Source: RocketMQ's MessageConst, MessageSysFlag, MessageDecoder, MessageClientIDSetter, TopicValidator,
PermName.

Must not know how a message is stored (``mqspark.record.record``) or sent (``mqspark.protocol``).

Facts: docs/rocketmq/messages.md#properties.
"""

from __future__ import annotations

import base64
import bisect
import datetime
import ipaddress
import itertools
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NewType, overload

from mqspark.base.bounded import Memo
from mqspark.base.clock import wall_ms
from mqspark.base.config import did_you_mean
from mqspark.base.crc import crc32 as full_crc32
from mqspark.base.logs import printable
from mqspark.base.propertystring import TAGS as TAGS
from mqspark.base.propertystring import UNIQ_KEY as UNIQ_KEY
from mqspark.base.propertystring import decode_properties as decode_properties
from mqspark.base.propertystring import encode_properties as encode_properties
from mqspark.base.propertystring import encode_stored_properties as encode_stored_properties
from mqspark.base.propertystring import text_of
from mqspark.errors import ConfigError, InvalidMessage, NoSuchTopic

PhysicalOffset = NewType("PhysicalOffset", int)
"""A byte position in the CommitLog, counted from the creation of the store."""

QueueOffset = NewType("QueueOffset", int)
"""The index of a message in its queue: dense, monotone, never reused."""


class MessageQueue(NamedTuple):
    """One queue of one topic on one broker. Sorts as in RocketMQ: topic, broker name, queue id."""

    topic: str
    broker_name: str
    queue_id: int


class Queues(Sequence[MessageQueue]):
    """The queues of a topic, broker by broker, each from queue id 0 on. Equal to any sequence of the same
    queues."""

    __slots__ = ("_starts", "spans", "topic")

    def __init__(self, topic: str, spans: Iterable[tuple[str, int]] = ()) -> None:
        """``spans``: broker names and the number of queues of each."""
        self.topic = topic
        self.spans = tuple((name, count) for name, count in spans if count > 0)
        self._starts = tuple(itertools.accumulate((count for _, count in self.spans), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[MessageQueue]:
        for name, count in self.spans:
            for queue_id in range(count):
                yield MessageQueue(self.topic, name, queue_id)

    @overload
    def __getitem__(self, index: int) -> MessageQueue: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MessageQueue]: ...
    def __getitem__(self, index: int | slice) -> MessageQueue | Sequence[MessageQueue]:
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step != 1:
                return tuple(self[place] for place in range(first, end, step))
            return tuple(
                MessageQueue(self.topic, name, queue_id)
                for start, (name, count) in zip(self._starts, self.spans, strict=False)
                for queue_id in range(max(0, first - start), min(count, end - start))
            )
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        span = bisect.bisect_right(self._starts, place) - 1
        return MessageQueue(self.topic, self.spans[span][0], place - self._starts[span])

    def place_of(self, queue: object) -> int | None:
        """The index of ``queue``; None when it is not in the sequence."""
        if isinstance(queue, tuple) and len(queue) == 3 and queue[0] == self.topic:
            for start, (name, count) in zip(self._starts, self.spans, strict=False):
                if name == queue[1] and isinstance(queue[2], int) and 0 <= queue[2] < count:
                    return start + queue[2]
        return None

    def __contains__(self, queue: object) -> bool:
        return self.place_of(queue) is not None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Queues):
            return self.topic == other.topic and self.spans == other.spans
        if isinstance(other, (tuple, list)):
            return len(self) == len(other) and all(map(MessageQueue.__eq__, self, other))
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.topic, self.spans))

    def __repr__(self) -> str:
        return f"Queues({self.topic!r}, {self.spans!r})"


# --- properties (MessageConst) ------------------------------------------------------------------------------

KEYS = "KEYS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
TRANSACTION_BATCH = "MQSPARK_BATCH"
"""Property of this project: on a prepared message whose body is that of a batch send, ``count:flags``
(``mqspark.broker.transaction.halfbatches``)."""
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANSACTION_FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""On the copy of a half message that was made while it was immune: the queue offset of the first copy."""
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
INSTANCE_ID = "INSTANCE_ID"
CLUSTER = "CLUSTER"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
POP_CK = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"
SHARDING_KEY = "__SHARDINGKEY"
LITE_TOPIC = "__LITE_TOPIC"
"""The lite topic of a message to a parent topic."""
PRIORITY = "_SYS_MSG_PRIORITY_"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
BORN_HOST = "__BORNHOST"
"""Where a message was born, and when, as a proxy says it."""
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
DELAYS = frozenset({DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS})
"""The properties of which each asks for a later delivery."""
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_ROLLED_FROM = "TIMER_ROLLED_FROM"
"""On a message that goes round the wheel again: its queue offset before. Not on what is delivered."""
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
MESSAGE_TYPE = "MSG_TYPE"
"""``REPLY`` on the reply to a request."""
REPLY = "reply"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
"""On a request and its reply: the id of the waiting client."""
TTL = "TTL"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
ARRIVE_TIME = "ARRIVE_TIME"
CRC32 = "__CRC32#"


def has_key(properties: Mapping[str, str], key: str) -> bool:
    """Whether a message with these properties has that key or unique key. Only a space separates keys
    (MessageConst.KEY_SEPARATOR)."""
    return bool(key) and (key == properties.get(UNIQ_KEY) or key in properties.get(KEYS, "").split(" "))


def is_dispatched(topic: str, properties: Mapping[str, str]) -> bool:
    """Whether ``topic`` is a light queue that a message with these properties enters, which is stored elsewhere."""
    return topic.startswith(LMQ_PREFIX) and topic in properties.get(MULTI_DISPATCH, "").split(",")


def awaited_topic(topic: str, properties: Mapping[str, str]) -> str:
    """The topic that a message is for: the real one of a message that waits in a topic of the broker."""
    return properties.get(REAL_TOPIC) or topic if is_broker_topic(topic) else topic


SET_BY_BROKERS = frozenset(
    {
        UNIQ_KEY,
        WAIT,
        DELAY,
        RETRY_TOPIC,
        REAL_TOPIC,
        REAL_QUEUE_ID,
        ORIGIN_MESSAGE_ID,
        RECONSUME_TIME,
        MAX_RECONSUME_TIMES,
        "CONSUME_START_TIME",
        MIN_OFFSET,
        MAX_OFFSET,
        DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_MESSAGE_ID,
        CLUSTER,
        TRACE_ON,
        MSG_REGION,
        TRANSACTION_PREPARED,
        TRANSACTION_BATCH,
        TRANSACTION_CHECK_TIMES,
        TRANSACTION_FIRST_OFFSET,
        PRODUCER_GROUP,
        MULTI_QUEUE_OFFSET,
        POP_CK,
        FIRST_POP_TIME,
        ORIGIN_GROUP,
        "BORN_HOST",
        BORN_TIMESTAMP,
        INNER_NUM,
        INNER_BASE,
        TIMER_DELAY_SEC,
        TIMER_DELAY_MS,
        TIMER_DELIVER_MS,
        TIMER_OUT_MS,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_ROLL_TIMES,
        TIMER_ROLLED_FROM,
        CRC32,
    }
)
"""Properties that brokers and clients set for one delivery. A copy of a message that is sent gets its own."""


# --- system flag (MessageSysFlag) ---------------------------------------------------------------------------

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED_TYPE = 0x4
TRANSACTION_COMMIT_TYPE = 0x8
TRANSACTION_ROLLBACK_TYPE = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
HOST_FLAGS = BORN_HOST_V6 | STORE_HOST_V6
"""Set by the store from the hosts it is given."""
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_SHIFT = 8
COMPRESSION_MASK = 0x700

# --- permissions (PermName) ---------------------------------------------------------------------------------

PERM_INHERIT = 0x1
PERM_WRITE = 0x2
PERM_READ = 0x4
PERM_READ_WRITE = PERM_READ | PERM_WRITE

# --- types of messages (TopicMessageType) -------------------------------------------------------------------

MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED")
"""What the attribute ``message.type`` of a topic may be. A topic of type MIXED takes those of all others."""

NEW_TOPIC_QUEUES = 8
"""Queues that a new topic has at each broker when nobody says how many (UpdateTopicSubCommand)."""
CLIENT_TOPIC_QUEUES = 4
"""The same for what a client's send or its admin creates (DefaultMQProducer.defaultTopicQueueNums)."""

# --- replicas (MixAll) --------------------------------------------------------------------------------------

MASTER_ID = 0
"""The broker id of a master; slaves have greater ones."""

# --- names (TopicValidator, MixAll) -------------------------------------------------------------------------

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
SYSTEM_PREFIX = "rmq_sys_"
REVIVE_LOG_PREFIX = "rmq_sys_REVIVE_LOG_"
"""With the cluster's name: the topic of POP's check points (PopAckConstants)."""
MEMBER_GROUP_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""With the broker's name: the topic whose route tells brokers the replicas of their name, never with an acting master
(TopicValidator.SYNC_BROKER_MEMBER_GROUP_PREFIX)."""
TRACE_DATA_PREFIX = "rmq_sys_TRACE_DATA_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TOOLS_GROUP = "TOOLS_CONSUMER"
TRANS_GROUP = "CID_RMQ_SYS_TRANS"
"""The group whose offsets say how far half messages and decisions were read."""
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
"""The group whose offsets say how far POP's check points were read. Each is that of the last one, not of the next."""
BUILT_IN_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANS_GROUP,
)
"""Groups that each broker has from its start (SubscriptionGroupManager.init)."""
DEFAULT_TOPIC = "TBW102"
"""The template topic that auto-created topics copy (autoCreateTopicEnable)."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        "CHECKPOINT_TOPIC",
    }
)
SEND_FORBIDDEN_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)

SINK_DECISIONS_TOPIC = "mqspark_sink_decisions"
"""Topic of this project: decisions of the exactly-once Spark sink (``pyspark_pymq.writing.decisionlog``).
Only committed transactions write to it."""

SCHEMAS_TOPIC = "rmq_sys_mqspark_schemas"
"""Topic of this project: the records of the schema registry, in one queue of the broker that keeps it."""

MAX_TOPIC_LENGTH = 127
MAX_LONG_TOPIC_LENGTH = 255
"""Limit for ``%RETRY%`` and ``%DLQ%`` topics."""
MAX_GROUP_LENGTH = 120
MAX_PROPERTIES_BYTES = 32767

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
MAX_PRIORITY = (1 << 31) - 1
FIRST_RETRY_LEVEL = 3
"""The delay level after the first attempt, unless the consumer names one; each further attempt adds one
(MQClientAPIImpl, SendMessageProcessor)."""
MAX_DIGITS = 18
"""Any number with this many digits fits into a Java long."""


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_system_group(group: str) -> bool:
    return group in BUILT_IN_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_broker_topic(topic: str) -> bool:
    """Whether only the broker writes to this topic and trusts what it reads there. RocketMQ refuses clients
    the first of these topics (TopicValidator) but lets them write to its timer topic and POP's revive log.
    ``rmq_sys_TRACE_DATA_*`` (TraceConstants), ``*_REPLY_TOPIC`` and ``RMQ_SYS_TRACE_TOPIC`` are written by
    clients, so they do not count."""
    return topic in SEND_FORBIDDEN_TOPICS or (
        topic.startswith(SYSTEM_PREFIX) and not topic.startswith(TRACE_DATA_PREFIX)
    )


def check_text(what: str, value: object) -> None:
    """Raise InvalidMessage(field=what) unless ``value`` is text. For programs without type checks."""
    if not isinstance(value, str):
        raise InvalidMessage(f"a {what} is text, not {type(value).__name__}", field=what)


def check_number(what: str, value: object, bits: int) -> None:
    """Raise InvalidMessage(field=what) unless ``value`` is a whole number of so many bits."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidMessage(f"{what} is a whole number, not {value!r:.40}", field=what)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise InvalidMessage(f"{what} is a whole number of {bits} bits", field=what)


def check_flag(flag: object) -> None:
    """Raise InvalidMessage(field="flag") unless ``flag`` is a number of 32 bits, which a record has for it."""
    check_number("flag", flag, 32)


def _joined_keys(keys: str | Iterable[str]) -> str:
    if isinstance(keys, str):
        return keys
    try:
        return " ".join(keys)
    except TypeError:
        raise InvalidMessage("keys are text or several texts", field="keys") from None


def check_topic(topic: str) -> None:
    """Raise InvalidMessage(field="topic") unless RocketMQ accepts the name."""
    check_text("topic", topic)
    if not topic or topic.isspace():
        raise InvalidMessage("The specified topic is blank.", field="topic")
    if _NAME.fullmatch(topic) is None:
        raise InvalidMessage(
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$: "
            + printable(topic, MAX_LONG_TOPIC_LENGTH),
            field="topic",
        )
    limit = MAX_LONG_TOPIC_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH
    if len(topic) > limit:
        raise InvalidMessage(f"The specified topic is longer than topic max length {limit}.", field="topic")


def no_such_topic(topic: str, known: Iterable[str] = ()) -> NoSuchTopic:
    """The error for a missing topic: similar names of ``known``, or why there can be none of this name."""
    hint = did_you_mean(topic, known)
    if not hint:
        try:
            check_topic(topic)
        except InvalidMessage as error:
            hint = f": {error}"
    return NoSuchTopic(topic, hint)


def check_group(group: str) -> None:
    """Raise InvalidMessage(field="group") unless RocketMQ accepts the name."""
    check_text("group", group)
    if not group or group.isspace():
        raise InvalidMessage("the specified group is blank", field="group")
    if len(group) > MAX_GROUP_LENGTH:
        raise InvalidMessage(
            f"the specified group is longer than group max length {MAX_GROUP_LENGTH}", field="group"
        )
    if _NAME.fullmatch(group) is None:
        raise InvalidMessage(
            f"the specified group[{printable(group)}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
            field="group",
        )


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


# --- hashes -------------------------------------------------------------------------------------------------


def java_hash(text: str) -> int:
    """``String.hashCode``: 31·h + UTF-16 unit, signed 32 bit. The tags code of a message is the hash of its
    TAGS."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
            value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


java_hashes = Memo("message.hashes", java_hash)
"""Cached hashes of tags and topics, which repeat often."""


def split_tags(expression: str | None) -> list[str]:
    """The tags of ``TagA || TagB`` in order. Empty for None, "" and ``*``, which match everything
    (FilterAPI).

    Raises InvalidMessage(field="expression") for bars without a tag around them.
    """
    if not expression or expression == "*":
        return []
    if not expression.replace("||", ""):
        raise InvalidMessage(f"{expression!r} is not a tag expression", field="expression")
    return list(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))


def crc32(data: bytes | bytearray | memoryview) -> int:
    """RocketMQ's CRC: CRC-32 (IEEE) without its top bit (UtilAll.crc32)."""
    return full_crc32(data) & 0x7FFFFFFF


# --- hosts and ids ------------------------------------------------------------------------------------------


def encode_host(address: str, port: int) -> bytes:
    """4 or 16 address bytes and the port as i32: the format of BORNHOST and STOREHOST."""
    return ipaddress.ip_address(address.partition("%")[0]).packed + struct.pack(">i", port)


def decode_host(host: bytes | memoryview) -> tuple[str, int]:
    """The reverse of encode_host; takes 8 or 20 bytes."""
    raw = bytes(host)
    return str(ipaddress.ip_address(raw[:-4])), int.from_bytes(raw[-4:], "big", signed=True)


def format_host(host: bytes | memoryview) -> str:
    """``address:port``, with IPv6 addresses in brackets."""
    address, port = decode_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _parse_host(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    return encode_host(address.strip("[]"), int(port))


_hosts = Memo("message.hosts", _parse_host, max_bytes=1 << 20)


def parse_host(text: str) -> bytes:
    """The reverse of format_host."""
    return _hosts[text]


def encode_offset_id(store_host: bytes, physical_offset: int) -> str:
    """The broker's message id: store host and physical offset in upper-case hex, 32 or 56 characters."""
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def encode_recall_handle(topic: str, broker_name: str, deliver_ms: int, unique_id: str) -> str:
    """The handle with which a producer can recall a timer message (RecallMessageHandle)."""
    text = f"v1 {topic} {broker_name} {deliver_ms} {unique_id}"
    return base64.urlsafe_b64encode(text.encode()).decode("ascii")


def parse_number(text: str | bytes | None) -> int | None:
    """A non-negative number of at most 18 digits; None for anything else. The text may come from any client,
    and ``int`` accepts non-ASCII digits but raises for thousands of them."""
    if text is None or len(text) > MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def decode_recall_handle(handle: str) -> tuple[str, str, int, str]:
    """(topic, broker name, deliver time in ms, unique id). The time is -1 when it is not a number. Raises
    InvalidMessage(field="recallHandle")."""
    try:
        # Java accepts a missing padding and refuses characters outside the alphabet.
        if not handle.isascii() or "+" in handle or "/" in handle:
            raise ValueError(handle)
        raw = base64.b64decode(
            handle.rstrip("=") + "=" * (-len(handle.rstrip("=")) % 4), b"-_", validate=True
        )
        words = raw.decode("utf-8", "replace").rstrip(" ").split(" ")
    except ValueError:
        words = []
    if len(words) < 5 or words[0] != "v1":
        raise InvalidMessage("recall handle is invalid", field="recallHandle")
    _, topic, broker_name, time_text, unique_id, *_ = words
    deliver_ms = parse_number(time_text)
    return topic, broker_name, -1 if deliver_ms is None else deliver_ms, unique_id


def parse_priority(text: str | None) -> int | None:
    """The value of PRIORITY. None for what Java's client reads as -1: no priority (Message.getPriority)."""
    if not text:
        return None
    digits = text[1:] if text[0] in "+-" else text
    if not (digits.isascii() and digits.isdigit()):
        return None
    value = parse_number(digits.lstrip("0") or "0")
    if value is None or value > MAX_PRIORITY or (text[0] == "-" and value):
        return None
    return value


def decode_offset_id(message_id: str) -> tuple[str, int, PhysicalOffset]:
    """(address, port, physical offset); raises InvalidMessage(field="msgId")."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise InvalidMessage(f"{message_id!r} is not an offset message id", field="msgId")
    address, port = decode_host(raw[:-8])
    return address, port, PhysicalOffset(int.from_bytes(raw[-8:], "big", signed=True))


_COUNTED = 1 << 15
"""Ids that are made with one time: half of what the counter tells apart, as other threads count, too."""


class UniqueIdGenerator:
    """Generates UNIQ_KEY values: address, pid, process salt, ms since the start of the month, counter.

    Unique across threads and forks. One instance per process is enough (``new_unique_id``).
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = ipaddress.ip_address(address).packed
        self._month_ms = (0, 0)
        """Start and end of the current month."""
        self._begin()
        # Asking for the pid each time would cost a system call per message.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        pid, salt = os.getpid() & 0xFFFF, os.urandom(4)
        self._prefix = (self._address + pid.to_bytes(2, "big") + salt).hex().upper()
        self._counter = itertools.count(int.from_bytes(os.urandom(2), "big"))

    def __call__(self) -> str:
        now_ms = wall_ms()
        start_ms, end_ms = self._month_ms
        if not start_ms <= now_ms < end_ms:
            start_ms, _ = self._month_ms = _month_around(now_ms)
        # Threads get different numbers without a lock, because ``next`` is atomic.
        return f"{self._prefix}{now_ms - start_ms:08X}{next(self._counter) & 0xFFFF:04X}"

    def several(self, count: int) -> list[str]:
        """So many at once, for a third of the time of each."""
        counter = self._counter
        ids: list[str] = []
        while len(ids) < count:
            first = self()  # of a later time than the last ones: to make them takes milliseconds
            head, more = first[:-4], min(count - len(ids), _COUNTED) - 1
            ids += [first, *[f"{head}{next(counter) & 0xFFFF:04X}" for _ in range(more)]]
        return ids


def _month_around(now_ms: int) -> tuple[int, int]:
    start = datetime.datetime.fromtimestamp(now_ms / 1000).astimezone()
    start = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = (start + datetime.timedelta(days=32)).replace(day=1)
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)


new_unique_id = UniqueIdGenerator()


# --- messages -----------------------------------------------------------------------------------------------


_NO_VALUE = object()


class _Late:
    """Slots for the data that a message was decoded from."""

    __slots__ = ("decoded", "decoder", "encoded_properties", "packed")

    decoder: Callable[[Any], Any]
    """Makes the value of a message, for a consumer with a serializer."""
    decoded: Any
    encoded_properties: bytes
    packed: Any
    """State of ``mqspark.record.record.PackedMessage``."""

    def __getstate__(self) -> object:
        """Without the decoder, which belongs to the consumer's process; a value that was made goes along."""
        state: Any = object.__getstate__(self)
        own, slots = state
        return own, {name: value for name, value in slots.items() if name != "decoder"}


def _body_of(body: bytes | str) -> bytes:
    """Raises InvalidMessage."""
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError:
            raise InvalidMessage("the body is text with an unpaired surrogate", field="body") from None
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidMessage(
            f"a body is bytes or text, not {type(body).__name__}: encode it, e.g. by json.dumps", field="body"
        )
    return bytes(body)


class ValueBody(bytes):
    """The body of a message that has a value, until the serializer of a producer makes bytes of it."""

    value: Any

    @classmethod
    def of(cls, value: Any) -> ValueBody:
        made = cls()
        made.value = value
        return made


@dataclass(slots=True)
class Message(_Late):
    """A message to send. ``body`` is opaque bytes; ``properties`` includes tags and keys. ``of`` builds one
    from the usual arguments."""

    topic: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict, kw_only=True)
    flag: int = field(default=0, kw_only=True)

    @classmethod
    def of(
        cls,
        topic: str,
        body: bytes | str = b"",
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        priority: int | None = None,
        value: Any = _NO_VALUE,
    ) -> Message:
        """``keys``: one key or several. A text body is encoded in UTF-8. ``value``, instead of a body: the producer's
        ``serializer`` makes the body of it.

        At most one of: ``delay_level``, a level of the broker (by default 1 is 1 s, 18 is 2 h); ``delay_ms``
        after storing; ``deliver_at_ms`` since the epoch. ``priority``: from 0 on, for a message without a delay;
        the broker stores it in the queue with this number, or in the last queue. Raises InvalidMessage for more
        than one delay, for a priority that is negative or beside a delay, for a body that is neither bytes nor
        text, and for any other argument of another type.
        """
        check_text("topic", topic)
        check_flag(flag)
        if value is not _NO_VALUE and body != b"":
            raise InvalidMessage("a message has a body or a value, not both", field="value")
        if properties is not None and not isinstance(properties, Mapping):
            raise InvalidMessage(
                f"properties are a mapping, not {type(properties).__name__}", field="properties"
            )
        message = cls(
            topic=topic,
            body=_body_of(body) if value is _NO_VALUE else ValueBody.of(value),
            properties=dict(properties or {}),
            flag=flag,
        )
        if tags is not None:
            check_text("tags", tags)
        if tags:
            message.properties[TAGS] = tags
        if keys is not None:
            message.properties[KEYS] = _joined_keys(keys)
            if not message.properties[KEYS]:
                del message.properties[KEYS]
        if properties:
            text_of(message.properties)
        for what, number in (
            ("delay_level", delay_level),
            ("delay_ms", delay_ms),
            ("deliver_at_ms", deliver_at_ms),
        ):
            if number is not None:
                check_number(what, number, 64)
        delays = {DELAY: delay_level, TIMER_DELAY_MS: delay_ms, TIMER_DELIVER_MS: deliver_at_ms}
        given = {name: str(value) for name, value in delays.items() if value is not None}
        if len(given) > 1:
            raise InvalidMessage("give one of delay_level, delay_ms and deliver_at_ms", field="delay")
        message.properties.update(given)
        if priority is not None:
            check_number("priority", priority, 64)
            if not 0 <= priority <= MAX_PRIORITY:
                raise InvalidMessage(
                    f"the priority must be a number from 0 to {MAX_PRIORITY}, not {priority!r:.40}",
                    field="priority",
                )
            if given:
                raise InvalidMessage("a message with a delay has no priority", field="priority")
            message.properties[PRIORITY] = str(priority)
        return message

    @property
    def tags(self) -> str | None:
        """The message's tag, by which consumers filter; None: it has none."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> str | None:
        """The keys, separated by spaces."""
        return self.properties.get(KEYS)

    @property
    def priority(self) -> int | None:
        """The message's priority, from 0 on; None: it has none."""
        return parse_priority(self.properties.get(PRIORITY))

    @property
    def unique_id(self) -> str | None:
        """The id that the producer gave the message, 32 hex digits; None before it is sent."""
        return self.properties.get(UNIQ_KEY)


@dataclass(slots=True, kw_only=True)
class MessageExt(Message):
    """A stored message as a consumer gets it. ``body`` is decompressed on access, which raises InvalidMessage
    when it fails.

    A decoder may omit ``properties`` and ``offset_message_id`` and set ``encoded_properties``: both are then
    built on access.
    """

    queue_id: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: PhysicalOffset
    body_crc: int
    store_size_bytes: int
    offset_message_id: str
    broker_name: str = ""

    @property
    def value(self) -> Any:
        """What the consumer's ``serializer`` makes of the body: made once. Raises InvalidMessage for a body that does
        not fit its schema, ClientError where the registry does not answer, ConfigError without a serializer."""
        with suppress(AttributeError):
            return self.decoded
        try:
            decoder = self.decoder
        except AttributeError:
            raise ConfigError(
                "a message has a value if its consumer has a serializer: Consumer(..., serializer=Serializer(...))",
                key="serializer",
            ) from None
        self.decoded = decoder(self)
        return self.decoded

    @property
    def stored_body_bytes(self) -> int:
        """Size of the body as stored. For a compressed body it is less than ``len(body)`` and known without
        inflating."""
        return len(self.body)

    @property
    def message_id(self) -> str:
        """The producer's unique id if it set one, otherwise the broker's offset id."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def queue(self) -> MessageQueue:
        """The queue that the message was read from."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


def _late(name: str, doc: str, make: Callable[[MessageExt], Any]) -> None:
    """Have ``make`` make this field when it is first read. ``__getattr__`` would do that too, but it makes each read of
    any field five times as slow."""
    slot: Any = getattr(MessageExt, name)
    read, write = slot.__get__, slot.__set__

    def field_of(message: MessageExt) -> Any:
        try:
            return read(message)
        except AttributeError:
            value = make(message)
            write(message, value)
            return value

    setattr(MessageExt, name, property(field_of, write, slot.__delete__, doc))


_late(
    "properties",
    "Of the producer and of the brokers, tags and keys included.",
    lambda message: decode_properties(message.encoded_properties),
)
_late(
    "offset_message_id",
    "The broker's own id: its address and the message's place in its CommitLog.",
    lambda message: encode_offset_id(parse_host(message.store_host), message.physical_offset),
)
