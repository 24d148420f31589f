"""The topics of this broker (TopicConfigManager) and their file.

A ``Topic`` is for the hot paths: plain attributes copied from the configuration, and traffic counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mqspark.base.bounded import BoundedMap, Ledger, weigh
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.base.histogram import Histogram
from mqspark.base.keyorder import KeyOrder
from mqspark.base.names import sound_only
from mqspark.broker.config import BrokerConfig
from mqspark.broker.tables.attributes import SCHEMA_VALIDATION, VALIDATION_OFF
from mqspark.broker.tables.followed import followed
from mqspark.errors import InvalidMessage
from mqspark.message import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    MEMBER_GROUP_PREFIX,
    OFFSET_MOVED_EVENT,
    PERM_INHERIT,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    RETRY_PREFIX,
    REVIVE_LOG_PREFIX,
    SCHEDULE_TOPIC,
    SCHEMAS_TOPIC,
    SELF_TEST_TOPIC,
    SINK_DECISIONS_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    check_topic,
    is_broker_topic,
    is_system_topic,
)
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import decode_table, to_document
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work
from mqspark.store.queue.multidispatch import is_lmq

SINGLE_TAG, MULTI_TAG = "SINGLE_TAG", "MULTI_TAG"
UNIT, UNIT_SUB = 0x1, 0x2
"""Bits of topicSysFlag (TopicSysFlag)."""

SCHEDULE_QUEUES = 18
NORMAL = "normal"
SIZE_BOUNDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""The buckets of rocketmq_message_size (BrokerMetricsManager)."""
BENCHMARK_QUEUES = 1024


class OfKind:
    """The messages of one topic that have one type."""

    __slots__ = ("bytes", "messages", "sizes")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.sizes = Histogram(SIZE_BOUNDS)
        """Mean bytes of a message, by sends."""


class Topic(Struct, eq=False, gc=False):
    """One topic: its configuration flattened for the hot paths, and its counters since start. There may be very many:
    the garbage collector looks at none of them, as nothing in one leads back to it."""

    config: TopicConfig
    name: str = ""
    up_to_1k: int = 0
    """Sends of one ordinary message of at most 1 KiB; like the next one counted by the fast path of a send."""
    up_to_4k: int = 0
    counted: int = 0
    """All other messages."""
    put_bytes: int = 0
    """The bytes of whole records."""
    joined_count: int = 0
    """The messages after the first of their batch."""
    joined_bytes: int = 0
    kinds: dict[str, OfKind] = {}
    """The part of messages that are not ordinary, by their type."""
    sizes: Histogram | None = None
    """Mean bytes of a message, by sends of ordinary messages that the fast path does not count; None: there was
    none."""
    send_forbidden: bool = False
    commits_only: bool = False
    """Whether only committed half messages may be stored in it."""
    retry_of: str | None = None
    """The group whose retry topic this is."""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    queue_limit: int = 0
    readable: bool = False
    order: bool = False
    sys_flag: int = 0
    multi_tag: bool = False
    inner_batch: bool = False
    needs_key: bool = False
    order_by_priority: bool = False
    """Whether POP takes its queues in the order of their priority."""
    validation: str | None = None
    """What is done with a body that does not fit the topic's schemas; None: bodies are not checked."""
    plain: bool = False
    """Whether a send only needs to check its queue id."""

    def __post_init__(self) -> None:
        self.name = self.config.topic_name
        self.send_forbidden = is_broker_topic(self.name)
        self.commits_only = self.name == SINK_DECISIONS_TOPIC
        self.retry_of = self.name.removeprefix(RETRY_PREFIX) if self.name.startswith(RETRY_PREFIX) else None
        self.configure(self.config)

    def configure(self, config: TopicConfig) -> None:
        """Copy the configuration."""
        self.config = config
        self.read_queue_nums = config.read_queue_nums
        self.write_queue_nums = config.write_queue_nums
        self.queue_limit = max(config.read_queue_nums, config.write_queue_nums)
        self.readable = config.perm & PERM_READ != 0
        self.order = config.order
        self.sys_flag = config.topic_sys_flag
        self.multi_tag = config.topic_filter_type == MULTI_TAG
        self.inner_batch = config.attributes.get("queue.type") == "BatchCQ"
        self.needs_key = config.attributes.get("cleanup.policy") == "COMPACTION"
        self.order_by_priority = config.attributes.get("message.type") == "PRIORITY"
        validation = config.attributes.get(SCHEMA_VALIDATION, VALIDATION_OFF)
        self.validation = None if validation == VALIDATION_OFF else validation
        self.plain = not (
            self.order or self.send_forbidden or self.commits_only or self.inner_batch or self.retry_of
        )

    def count(self, size_bytes: int, kind: str = NORMAL, messages: int = 1) -> None:
        """A send of messages, whose records have this size together, was stored."""
        self.counted += messages
        self.put_bytes += size_bytes
        each_bytes = size_bytes // messages if messages > 1 else size_bytes
        if messages > 1:
            self.joined_count += messages - 1
            self.joined_bytes += size_bytes - each_bytes
        if kind != NORMAL:
            of_kind = self.kinds.get(kind)
            if of_kind is None:
                of_kind = self.kinds[kind] = OfKind()
            of_kind.messages += messages
            of_kind.bytes += size_bytes
            of_kind.sizes.record(each_bytes)
        else:
            if self.sizes is None:
                self.sizes = Histogram(SIZE_BOUNDS)
            self.sizes.record(each_bytes)

    def count_run(self, sizes: Sequence[int]) -> None:
        """``count`` of ordinary messages, one by one."""
        largest = max(sizes)
        if largest <= 1024:
            self.up_to_1k += len(sizes)
        elif largest <= 4096 and min(sizes) > 1024:
            self.up_to_4k += len(sizes)
        else:
            for size in sizes:
                if size <= 1024:
                    self.up_to_1k += 1
                elif size <= 4096:
                    self.up_to_4k += 1
                else:
                    self.count(size)
                    self.put_bytes -= size
        self.put_bytes += sum(sizes)

    @property
    def put_count(self) -> int:
        """Messages stored since the start."""
        return self.up_to_1k + self.up_to_4k + self.counted

    def of_kinds(self) -> Iterator[tuple[str, OfKind]]:
        """All messages by their type."""
        rest = OfKind()
        rest.messages, rest.bytes = self.put_count, self.put_bytes
        total_bytes: float = self.put_bytes - self.joined_bytes
        for kind, part in self.kinds.items():
            rest.messages -= part.messages
            rest.bytes -= part.bytes
            total_bytes -= part.sizes.total
            yield kind, part
        if self.sizes is not None:
            rest.sizes = self.sizes.copy()
        rest.sizes.add(SIZE_BOUNDS[0], self.up_to_1k)
        rest.sizes.add(SIZE_BOUNDS[1], self.up_to_4k)
        rest.sizes.total = total_bytes
        if rest.messages:
            yield NORMAL, rest

    def describe(self) -> str:
        """As RocketMQ prints a TopicConfig in its remarks."""
        config = self.config
        perm = "".join(
            letter if config.perm & bit else "-"
            for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", 1))
        )
        return (
            f"TopicConfig [topicName={self.name}, readQueueNums={config.read_queue_nums},"
            f" writeQueueNums={config.write_queue_nums}, perm={perm},"
            f" topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag},"
            f" order={'true' if config.order else 'false'},"
            f" attributes={config.attributes}]"
        )


def count_stored(topics: Sequence[Topic], sizes: Sequence[int]) -> None:
    """Count a run of ordinary messages: the topic and the size of each. Topics of messages that were not stored may
    follow."""
    if len(topics) == 1 or topics.count(topics[0]) == len(topics):
        topics[0].count_run(sizes)
        return
    for topic, size in zip(topics, sizes, strict=False):
        topic.count_run((size,))


class Topics:
    """``generation`` counts changes, so that callers can tell whether they are saved and published."""

    def __init__(self, config: BrokerConfig, clock: Clock, *, lmq: bool = False) -> None:
        """``lmq``: a light message queue is a topic of one queue, recognised by its name and never in the table
        (LmqTopicConfigManager)."""
        self._config = config
        self._clock = clock
        self._lmq = lmq
        self.ledger = Ledger(
            "topics",
            Limit(config, "max_topic_table_bytes"),
            "Topics._table",
            "Topics._compacted",
            "TopicConfig.attributes",
        )
        self._configs: BoundedMap[str, TopicConfig] = self.ledger.map(
            300, weigh, most=Limit(config, "max_topics"), in_order=True
        )
        """Replaced, never modified."""
        self._table: dict[str, Topic] = {}
        """The topics by name."""
        self.get: Callable[[str], Topic | None] = self._find if lmq else self._table.get
        """name → Topic or None; bound once because every send and pull calls it."""
        self.data_version = DataVersion(state_version=0, timestamp=clock.now_ms(), counter=0)
        self.generation = 0
        for topic in self._system_topics():
            self._table[topic.topic_name] = Topic(topic)
        self._built_in = frozenset(self._table)
        self._compacted: set[str] = set()
        """Kept with every change: the table is too long to be searched once a second."""
        self._refill()

    def _system_topics(self) -> Iterator[TopicConfig]:
        config = self._config
        yield _topic(SELF_TEST_TOPIC, 1)
        if config.auto_create_topic_enable:
            yield self._template()
        yield _topic(BENCHMARK_TOPIC, BENCHMARK_QUEUES)
        cluster_perm = PERM_INHERIT | (PERM_READ_WRITE if config.cluster_topic_enable else 0)
        yield _topic(config.broker_cluster_name, 16, cluster_perm)
        broker_perm = PERM_INHERIT | (PERM_READ_WRITE if config.broker_topic_enable else 0)
        yield _topic(config.broker_name, 1, broker_perm)
        yield _topic(OFFSET_MOVED_EVENT, 1)
        yield _topic(SCHEDULE_TOPIC, SCHEDULE_QUEUES)
        if config.trace_topic_enable:
            yield _topic(config.msg_trace_topic_name, 1)
        yield _topic(f"{config.broker_cluster_name}_REPLY_TOPIC", 1)
        yield _topic(REVIVE_LOG_PREFIX + config.broker_cluster_name, config.revive_queue_num)
        yield _topic(MEMBER_GROUP_PREFIX + config.broker_name, 1, PERM_INHERIT)
        yield _topic(TRANS_HALF_TOPIC, 1)
        yield _topic(TRANS_OP_HALF_TOPIC, 1)
        yield _topic(TIMER_TOPIC, 1)
        if config.schema_registry_enable:
            schemas = _topic(SCHEMAS_TOPIC, 1)
            schemas.attributes["cleanup.policy"] = "COMPACTION"
            yield schemas

    def _template(self) -> TopicConfig:
        return _topic(DEFAULT_TOPIC, self._config.default_topic_queue_nums, PERM_INHERIT | PERM_READ_WRITE)

    def is_system(self, name: str) -> bool:
        """Whether operators may neither change nor delete it."""
        return name in self._built_in or is_system_topic(name)

    def __iter__(self) -> Iterator[Topic]:
        """In the order of their names. Topics may come and go meanwhile."""
        for name in self.names():
            if (topic := self._table.get(name)) is not None:
                yield topic

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def _find(self, name: str) -> Topic | None:
        return Topic(_topic(name, 1)) if is_lmq(name) else self._table.get(name)

    def is_stored(self, name: str) -> bool:
        """Whether the table has a row for it; light message queues have none."""
        return name in self._table

    def names(self) -> KeyOrder[str]:
        """In ascending order; nothing is copied."""
        return self._configs.in_order

    def compacted(self) -> list[str]:
        """The topics that keep the last value of each key. Those with BatchCQ queues are not compacted."""
        return sorted(self._compacted)

    def _note_compacted(self, topic: Topic) -> None:
        if topic.needs_key and not topic.inner_batch:
            self._compacted.add(topic.name)
        else:
            self._compacted.discard(topic.name)

    def page(self, first: int, end: int) -> list[str]:
        """Some of the names, in ascending order."""
        return self._configs.in_order.page(first, end)

    def put(self, config: TopicConfig, *, needed: bool = False, session: Session | None = None) -> Topic:
        """Create or replace a topic. An equal configuration changes nothing; neither does the configuration of a
        light message queue. ``session``: whose user a new topic belongs to.

        Raises TableFull.
        """
        if self._lmq and is_lmq(config.topic_name):
            return Topic(_topic(config.topic_name, 1))
        topic = self._table.get(config.topic_name)
        if topic is not None and topic.config == config:
            return topic
        if needed:
            self._configs.keep(config.topic_name, config)
        else:
            self._configs.put(config.topic_name, config, session if topic is None else None)
        if topic is None:
            topic = self._table[config.topic_name] = Topic(config)
        else:
            topic.configure(config)
        self._note_compacted(topic)
        self._changed()
        return topic

    def _refill(self) -> None:
        self._configs.refill({name: topic.config for name, topic in self._table.items()})
        self._compacted.clear()
        for topic in self._table.values():
            self._note_compacted(topic)

    def remove(self, name: str) -> None:
        if name in self._table:
            del self._table[name], self._configs[name]
            self._compacted.discard(name)
            self._changed()

    def auto_create(
        self,
        name: str,
        template_name: str,
        client_queue_nums: int,
        session: Session | None = None,
        *,
        sys_flag: int = 0,
    ) -> Topic | None:
        """Create an unknown topic from a send's ``defaultTopic``; None if that is not a template. Raises TableFull."""
        template = self._table.get(template_name)
        if template is None or not template.config.perm & PERM_INHERIT:
            return None
        queues = max(0, min(client_queue_nums, template.write_queue_nums))
        return self.put(
            TopicConfig(
                topic_name=name,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=template.config.perm & ~PERM_INHERIT,
                topic_filter_type=template.config.topic_filter_type,
                topic_sys_flag=sys_flag,
            ),
            session=session,
        )

    def ensure(
        self,
        name: str,
        queues: int,
        *,
        sys_flag: int = 0,
        needed: bool = False,
        session: Session | None = None,
    ) -> Topic:
        """Create a readable and writable topic for the broker's own purposes (retry topics); an existing one
        stays unchanged. Raises TableFull unless the topic is ``needed``."""
        topic = self._table.get(name)
        if topic is not None:
            return topic
        check_kept_topic(name)
        config = _topic(name, queues)
        config.topic_sys_flag = sys_flag
        return self.put(config, needed=needed, session=session)

    def adopt(self, name: str, queues: int) -> None:
        """Create a topic, or add queues to it, for messages that are stored already. Raises InvalidMessage."""
        check_kept_topic(name)
        topic = self._table.get(name)
        config = _topic(name, queues) if topic is None else copy_config(topic.config)
        config.read_queue_nums = max(config.read_queue_nums, queues)
        config.write_queue_nums = max(config.write_queue_nums, queues)
        self.put(config, needed=True)

    def follow_auto_create_setting(self) -> None:
        """Keep the template topic and its inherit bit while autoCreateTopicEnable is on, and only then.
        (RocketMQ's template loses the bit permanently once the setting is turned off.) The operator's queue counts
        are kept."""
        template = self._table.get(DEFAULT_TOPIC)
        if not self._config.auto_create_topic_enable:
            self.remove(DEFAULT_TOPIC)
        elif template is None:
            self.put(self._template(), needed=True)
        elif not template.config.perm & PERM_INHERIT:
            config = copy_config(template.config)
            config.perm |= PERM_INHERIT
            self.put(config)

    def set_order(self, ordered: frozenset[str]) -> None:
        """Apply the name server's list of ordered topics from a registration's answer; other topics stay
        unchanged."""
        for name in ordered:
            topic = self._table.get(name)
            if topic is not None and not topic.order:
                config = copy_config(topic.config)
                config.order = True
                self.put(config)

    def touch(self) -> None:
        """Have another version, so that name servers and slaves take the table again: something else in a registration
        has changed (the broker's own permission), or they may know other rows of this version."""
        self._changed()

    def begin_epoch(self, epoch: int) -> None:
        """This broker is the master from now on; name servers take its topics instead of those of an older one."""
        version = self.data_version
        self.data_version = DataVersion(epoch, version.timestamp, version.counter)
        self._changed()

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())
        self.generation += 1

    def follow(self, version: DataVersion, table: dict[str, TopicConfig]) -> Work[None]:
        """Become a copy of a master's table, which is consumed. Raises TableFull."""
        yield from followed(self.names().pages(), table, self.remove, self._put_all)
        self.data_version = version

    def _put_all(self, table: dict[str, TopicConfig]) -> None:
        for name, config in sound_only("topics", table, accepts=is_kept).items():
            config.topic_name = name
            self.put(config)

    # --- file ---

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Returns the encoder of the file. Configurations are replaced, never modified, so another thread may read
        them; it writes each as it is then."""
        document = to_document(TopicConfigSerializeWrapper(data_version=self.data_version))
        pages, configs = self._configs.in_order.pages(), self._configs

        def config_of(name: str) -> Any:
            config = configs.get(name)
            return None if config is None else to_document(config)

        def encode() -> Iterator[bytes]:
            document["topicConfigTable"] = fastjson.members_there(pages, config_of)
            return fastjson.pretty_pieces(document)

        return encode

    def load(self, data: bytes) -> None:
        """Load ``topics.json``. The file takes precedence over the built-in system topics. Raises ProtocolError."""
        wrapper = decode_table(TopicConfigSerializeWrapper, data)
        table = sound_only("topics", wrapper.topic_config_table, accepts=is_kept)
        for name, config in table.items():
            config.topic_name = name
            self._table[name] = Topic(config)
        if wrapper.data_version is not None:
            self.data_version = wrapper.data_version
        self._refill()
        self.follow_auto_create_setting()


def check_kept_topic(name: str) -> None:
    """Check a topic of the broker's table. POP's newer retry topics have a plus sign in their names, which
    requests may not use. Raises InvalidMessage."""
    check_topic(name.replace("+", "_", 1) if name.startswith(RETRY_PREFIX) else name)


def is_kept(name: str) -> bool:
    """Whether a topic of this name is read from ``topics.json``."""
    try:
        check_kept_topic(name)
    except InvalidMessage:
        return False
    return True


def copy_config(config: TopicConfig) -> TopicConfig:
    return replace(config, attributes=dict(config.attributes))


def _topic(name: str, queues: int, perm: int = PERM_READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
