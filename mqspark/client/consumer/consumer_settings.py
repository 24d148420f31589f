"""Settings of consumers: what each kind takes, and what a member of a group makes of them. Facts: RocketMQ's
DefaultMQPushConsumer, DefaultLitePullConsumer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from mqspark.base.valuetypes import InRange, NonNegativeInt, PositiveInt, check_fields
from mqspark.client.consumer.allocate import Allocation, Averagely
from mqspark.client.hooks.hooks import Interceptor
from mqspark.client.remoting.client_options import ClientKeywords
from mqspark.client.remoting.keywords import described
from mqspark.client.typed.serializer import Serializer
from mqspark.errors import ConfigError
from mqspark.protocol.bodies.client_bodies import ConsumeFromWhere, ConsumeType, MessageModel

E = TypeVar("E", bound=StrEnum)

ConsumeFrom = (
    ConsumeFromWhere
    | Literal[
        "earliest",
        "latest",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ]
)
"""What ``consume_from`` may be given as; settings hold the member."""
_STARTS = {
    "earliest": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "latest": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}

ANYBODYS_MESSAGES = 32
"""Messages in a default pull of brokers. A larger pull asks for a bulk answer, which RocketMQ's brokers ignore."""
MAX_POP_BATCH_SIZE = 32
"""Brokers refuse more."""
MIN_INVISIBLE_MS, MAX_INVISIBLE_MS = 1_000, 12 * 3600 * 1000
AVERAGELY = Averagely()
MAX_PULL_INTERVAL_MS = 65_535
"""DefaultMQPushConsumerImpl.checkConfig."""


@described
@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """What consumers of all kinds have; ``ClientOptions`` has what a consumer shares with other clients.

    Each kind of consumer takes a subclass, as ``settings=`` or field by field as keywords. Raises ConfigError for a
    value that is out of range. Enumerated settings may be given by name.
    """

    consume_type: ClassVar[ConsumeType] = ConsumeType.CONSUME_PASSIVELY
    """What brokers are told: whether the program asks for messages (CONSUME_ACTIVELY) or is called."""
    consume_from: ConsumeFrom = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    """Where to begin in a queue of which the group has committed nothing yet: "earliest" (CONSUME_FROM_FIRST_OFFSET),
    "latest" (CONSUME_FROM_LAST_OFFSET) or a member of ConsumeFromWhere. As with every RocketMQ client a broker
    may still return 0 as the start of a young queue, so that a group does not lose what was sent before it noticed
    the queue. POP consumers take only the first and the last offset."""
    allocation: Allocation = AVERAGELY
    """How the group's members share the queues; all members must use the same."""
    rebalance_interval_ms: PositiveInt = 20_000
    """Interval of rebalances; a change of the group's members also causes one."""
    interceptors: Sequence[Interceptor] = ()
    """The program's own code around each call of the listener, called in this order."""
    trace: bool = False
    """Record who consumed each message, for ``mqadmin queryMsgTraceById``."""
    trace_topic: str | None = None
    """Where to record; None: RMQ_SYS_TRACE_TOPIC."""
    serializer: Serializer | None = None
    """Makes ``value`` of the bodies of messages; None: messages have no value."""

    def __post_init__(self) -> None:
        if self.consume_from in ("earliest", "latest"):
            object.__setattr__(self, "consume_from", _STARTS[self.consume_from])
        _make_named(self, "consume_from", ConsumeFromWhere)
        if isinstance(self, PullSettings):
            _make_named(self, "message_model", MessageModel)
        check_fields(self)

    def in_group(self, group: str) -> GroupSettings:
        """The settings of a member of ``group``: those of its kind, and otherwise the defaults of ``GroupSettings``."""
        names = [each.name for each in dataclasses.fields(GroupSettings)]
        given = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return GroupSettings(group=group, **given)


@described
@dataclass(frozen=True, kw_only=True)
class PullSettings(ConsumerSettings):
    """What consumers that pull their queues have: push and lite pull consumers."""

    message_model: MessageModel | Literal["CLUSTERING", "BROADCASTING"] = MessageModel.CLUSTERING
    """CLUSTERING: the members of a group share the messages. BROADCASTING: each member gets all; offsets are kept in
    files of this host."""
    consume_timestamp_ms: NonNegativeInt | None = None
    """For CONSUME_FROM_TIMESTAMP, since the epoch; None: half an hour before the start."""
    pull_batch_size: PositiveInt = ANYBODYS_MESSAGES
    """Messages of one pull at most. More than 32 applies to mqspark brokers; RocketMQ's return at most 32 messages
    unless configured otherwise."""
    pull_interval_ms: Annotated[int, InRange(0, MAX_PULL_INTERVAL_MS)] = 0
    """Pause of a queue after a pull that found messages, 0 to 65535."""
    max_cached_messages: PositiveInt = 1_000
    """A queue is not pulled while this many of its messages are cached here."""
    max_cached_bytes: PositiveInt = 100 * 1024 * 1024
    """A queue is not pulled while the bodies of its cached messages exceed this size."""
    max_span: PositiveInt = 2_000
    """A queue is not pulled while the offsets of its cached messages span more than this. Not for ordered consumers."""
    local_offsets_directory: Path | None = None
    """Where a BROADCASTING consumer keeps its offsets; None: ``~/.rocketmq_offsets``."""


@described
@dataclass(frozen=True, kw_only=True)
class PushConsumerSettings(PullSettings):
    """What one push consumer does, blocking or not."""

    pull_batch_size: PositiveInt = 256
    """Messages of one pull at most. More than 32 applies to mqspark brokers and queues with a backlog, as far as the
    messages may be cached; RocketMQ's brokers return at most 32 messages unless configured otherwise."""
    batch_size: PositiveInt = 1
    """Messages that ``batch_listener`` gets at most."""
    concurrency: PositiveInt = 20
    """Calls of the listener at a time."""
    ordered: bool = False
    """One message (or batch) of a queue at a time, in the order of the queue, by one member of the group."""
    auto_commit: bool = True
    """False, for ordered consumers: messages count as consumed when the listener returns COMMIT."""
    max_cached_messages_per_topic: PositiveInt | None = None
    """Shared by the cached queues of a topic, instead of ``max_cached_messages``; None: no such limit."""
    max_cached_bytes_per_topic: PositiveInt | None = None
    """The same for bytes, instead of ``max_cached_bytes``."""
    max_reconsume_times: NonNegativeInt | None = None
    """A message that failed more often goes to the dead-letter topic. None: the group's configuration, 16 if there is
    none, and no limit for ordered consumers."""
    retry_delay_ms: PositiveInt = 5_000
    """How long a failed message waits here when the broker does not take it back."""
    consume_timeout_ms: PositiveInt = 15 * 60_000
    """A listener that takes longer counts as failed."""
    suspend_queue_ms: PositiveInt = 1_000
    """Ordered consumers: how long a queue rests before its failed message is delivered again."""
    lock_interval_ms: PositiveInt = 20_000
    """Ordered consumers: how often the locks of the queues are renewed."""
    persist_interval_ms: PositiveInt = 5_000
    """How often the offsets are committed."""
    suspend_ms: PositiveInt = 15_000
    """How long the broker may hold a pull while there are no messages."""

    def __post_init__(self) -> None:
        PullSettings.__post_init__(self)
        if not (self.auto_commit or self.ordered):
            raise ConfigError("auto_commit=False is for ordered consumers", key="auto_commit")


@described
@dataclass(frozen=True, kw_only=True)
class LitePullConsumerSettings(PullSettings):
    """What one lite pull consumer does, blocking or not. ``interceptors`` and ``trace`` see each batch as consumed when
    its first message is delivered."""

    consume_type: ClassVar[ConsumeType] = ConsumeType.CONSUME_ACTIVELY
    """As in ``ConsumerSettings``."""
    auto_commit: bool = True
    """Commit delivered messages automatically; False: only ``commit`` does."""
    auto_commit_interval_ms: PositiveInt = 5_000
    """Interval of automatic commits. Stopping commits as well."""
    max_cached_messages_in_all: PositiveInt = 10_000
    """Queues with cached messages are not pulled while this many messages of all queues are cached."""
    queues_interval_ms: PositiveInt = 30_000
    """How often the queues of topics are looked up for ``on_queues_changed``."""
    suspend_ms: PositiveInt = 20_000
    """How long the broker may hold a pull while there are no messages."""


@described
@dataclass(frozen=True, kw_only=True)
class PopConsumerSettings(ConsumerSettings):
    """What one POP consumer does, blocking or not."""

    concurrency: PositiveInt = 20
    """Calls of the listener at a time."""
    ordered: bool = False
    """One message of a queue at a time, in the order of the queue, by one member of the group. All members of a group
    must use the same value."""
    pop_batch_size: Annotated[int, InRange(1, MAX_POP_BATCH_SIZE)] = MAX_POP_BATCH_SIZE
    """Messages of one pop at most, up to 32."""
    invisible_ms: Annotated[int, InRange(MIN_INVISIBLE_MS, MAX_INVISIBLE_MS)] = 60_000
    """Invisible time of a popped message, 1 s to 12 h."""
    poll_ms: PositiveInt = 15_000
    """How long the broker may hold a pop while there are no messages."""
    max_unacknowledged: PositiveInt = 1_000
    """Nothing is popped while this many messages are cached here."""
    max_reconsume_times: NonNegativeInt = 16
    """A message that failed more often goes to the dead-letter topic."""
    suspend_queue_ms: PositiveInt = 1_000
    """Ordered consumers: how long a queue rests before its failed message is delivered again."""

    def __post_init__(self) -> None:
        ConsumerSettings.__post_init__(self)
        if self.consume_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            raise ConfigError("a POP consumer cannot start from a timestamp", key="consume_from")

    @property
    def pull_batch_size(self) -> int:
        """As a member of its group it is said to have."""
        return self.pop_batch_size


class ConsumerKeywords(ClientKeywords, total=False):
    """The fields of ``ConsumerSettings`` and ``ClientOptions``, as keywords."""

    consume_from: ConsumeFrom
    allocation: Allocation
    rebalance_interval_ms: int
    interceptors: Sequence[Interceptor]
    trace: bool
    trace_topic: str | None
    serializer: Serializer | None


class PullKeywords(ConsumerKeywords, total=False):
    """The fields of ``PullSettings`` and ``ClientOptions``, as keywords."""

    message_model: MessageModel | Literal["CLUSTERING", "BROADCASTING"]
    consume_timestamp_ms: int | None
    pull_batch_size: int
    pull_interval_ms: int
    max_cached_messages: int
    max_cached_bytes: int
    max_span: int
    local_offsets_directory: Path | None


class PushConsumerKeywords(PullKeywords, total=False):
    """The fields of ``PushConsumerSettings`` and ``ClientOptions``, as keywords."""

    batch_size: int
    concurrency: int
    ordered: bool
    auto_commit: bool
    max_cached_messages_per_topic: int | None
    max_cached_bytes_per_topic: int | None
    max_reconsume_times: int | None
    retry_delay_ms: int
    consume_timeout_ms: int
    suspend_queue_ms: int
    lock_interval_ms: int
    persist_interval_ms: int
    suspend_ms: int


class LitePullConsumerKeywords(PullKeywords, total=False):
    """The fields of ``LitePullConsumerSettings`` and ``ClientOptions``, as keywords."""

    auto_commit: bool
    auto_commit_interval_ms: int
    max_cached_messages_in_all: int
    queues_interval_ms: int
    suspend_ms: int


class PopConsumerKeywords(ConsumerKeywords, total=False):
    """The fields of ``PopConsumerSettings`` and ``ClientOptions``, as keywords."""

    concurrency: int
    ordered: bool
    pop_batch_size: int
    invisible_ms: int
    poll_ms: int
    max_unacknowledged: int
    max_reconsume_times: int
    suspend_queue_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a member of a consumer group, whatever kind of consumer it is."""

    group: str
    consume_type: ConsumeType
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp_ms: int | None = None
    allocation: Allocation = AVERAGELY
    rebalance_interval_ms: int = 20_000
    pull_batch_size: int = 32
    suspend_ms: int = 15_000
    local_offsets_directory: Path | None = None
    takeover_delay_ms: int = 200
    """Delay before reading a queue of another member, whose last offset may still be on its way to the broker."""

    @property
    def broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING


def _make_named(settings: ConsumerSettings, key: str, kind: type[E]) -> None:
    """Make the field a member of ``kind``, given as the member or its name. Raises ConfigError."""
    value = getattr(settings, key)
    try:
        object.__setattr__(settings, key, kind(value))
    except ValueError:
        names = [*_STARTS, *kind] if kind is ConsumeFromWhere else [*kind]
        raise ConfigError(f"{key}={value!r:.80} is none of {', '.join(names)}", key=key) from None
