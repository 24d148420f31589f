"""The mappings of static topics on this broker, and their file ``topicQueueMapping.json`` (TopicQueueMappingManager).

A mapping whose broker name is another one (the store directory of a broker that was renamed) is kept, but leads no
queue: requests for the topic are refused as NOT_LEADER_FOR_QUEUE.

Facts: docs/rocketmq/statictopics.md#mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from msgspec.structs import replace

from mqspark.base.bounded import BoundedMap, Ledger, weigh
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.base.names import check, sound_only
from mqspark.broker.config import BrokerConfig
from mqspark.broker.statictopic.logicqueues import LogicQueue, check_parts, check_succession
from mqspark.errors import IllegalName
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import decode_table, to_document
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
    TopicQueueMappingSerializeWrapper,
)
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal

MAX_LOGIC_QUEUES = 65_536
"""Limit for one topic, that of its physical queues on one broker. RocketMQ has none."""
MAX_PARTS = 1_024
"""Limit of the parts of one logic queue: each remapping adds one, and cleaning removes those without messages."""

MAX_BROKER_NAME = 127
"""As many characters as a topic's name, since a broker has a topic of its name."""

_MAPPING_BYTES, _QUEUE_BYTES, _PART_BYTES = 1_400, 900, 400

_log = sparing(__name__, lines=20)


class StaticTopic:
    """The mapping of one topic, as requests need it. Never modified: a change makes a new one."""

    __slots__ = ("_broker_name", "detail", "led", "queues")

    def __init__(self, detail: TopicQueueMappingDetail, broker_name: str) -> None:
        self.detail = detail
        self._broker_name = broker_name
        self.queues = {
            number: LogicQueue(number, parts) for number, parts in detail.hosted_queues.items() if parts
        }
        self.led = [number for number in sorted(self.queues) if self.is_led(self.queues[number])]
        """The logic queues that this broker leads."""

    @property
    def has_moved(self) -> bool:
        """Whether a logic queue known here has, or had, a part elsewhere: its offsets are not those of one queue."""
        return any(not queue.is_one for queue in self.queues.values())

    def is_led(self, queue: LogicQueue) -> bool:
        return queue.leader.bname == self._broker_name == self.detail.bname

    @property
    def is_own(self) -> bool:
        """Whether the mapping is one of this broker."""
        return self.detail.bname == self._broker_name

    def is_local(self, part: LogicQueueMappingItem) -> bool:
        return part.bname == self._broker_name

    def leading(
        self, number: int, what: str = "does not exit in request process of current broker"
    ) -> LogicQueue:
        """A logic queue that this broker leads. Raises Refusal (NOT_LEADER_FOR_QUEUE), with RocketMQ's words."""
        queue = self.queues.get(number)
        if queue is None or not self.is_led(queue):
            raise Refusal(
                ResponseCode.NOT_LEADER_FOR_QUEUE,
                f"{self.detail.topic}-{number} {what} {self._broker_name}",
                {},
            )
        return queue

    def written_queue(self, queue_id: int) -> int:
        """The physical queue for a message that came for ``queue_id``. If that one is no longer written to here,
        another one that is, because readers may have left the former; if there is none, ``queue_id``."""
        if not self.led or any(self.queues[number].leader.queue_id == queue_id for number in self.led):
            return queue_id
        return self.queues[self.led[queue_id % len(self.led)]].leader.queue_id

    @property
    def info(self) -> TopicQueueMappingInfo:
        """The mapping in registrations at name servers (cloneAsMappingInfo)."""
        detail = self.detail
        return TopicQueueMappingInfo(
            topic=detail.topic,
            scope=detail.scope,
            total_queues=detail.total_queues,
            bname=detail.bname,
            epoch=detail.epoch,
            curr_id_map={number: self.queues[number].leader.queue_id for number in self.led},
        )


class Mappings:
    """``generation`` counts changes. A Table of ``SavedTable``."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.ledger = Ledger(
            "topicQueueMappings",
            Limit(config, "max_topic_table_bytes"),
            "StaticTopic.queues",
            "StaticTopic.led",
            "LogicQueue.readable",
        )
        self.table: BoundedMap[str, StaticTopic] = self.ledger.map(_MAPPING_BYTES, _bytes_of)
        """By topic; empty on a broker without static topics, so that hot paths only test its truth."""
        self.data_version = DataVersion(timestamp=clock.now_ms())
        self.generation = 0

    @property
    def broker_name(self) -> str:
        return self._config.broker_name

    def find(self, topic: str, lo: bool | None) -> StaticTopic | None:
        """The mapping that a request means. ``lo`` of its header is False when it is for a physical queue: another
        broker asks (buildTopicQueueMappingContext)."""
        return None if lo is False or not self.table else self.table.get(topic)

    def check(self, new: TopicQueueMappingDetail, *, force: bool) -> TopicQueueMappingDetail:
        """The mapping that ``update`` would put. Raises Refusal."""
        self._check_own(new)
        for parts in new.hosted_queues.values():
            check_parts(parts)
        old = self.table.get(new.topic or "")
        if old is None:
            return new
        before = old.detail
        hosted = dict(new.hosted_queues)
        if not force:
            if new.epoch < before.epoch:
                raise _refusal(f"Can't accept data with small epoch {new.epoch} < {before.epoch}")
            if new.scope != before.scope:
                raise _refusal(f"Can't accept data with unmatched scope {new.scope} != {before.scope}")
            self._check_queues(before, hosted, epoch_equal=new.epoch == before.epoch)
        for number, parts in before.hosted_queues.items():
            hosted.setdefault(number, parts)
        return replace(new, hosted_queues=hosted)

    @staticmethod
    def _check_queues(
        before: TopicQueueMappingDetail,
        hosted: Mapping[int, Sequence[LogicQueueMappingItem]],
        *,
        epoch_equal: bool,
    ) -> None:
        for number, parts in before.hosted_queues.items():
            if number in hosted:
                if parts:
                    check_succession(parts, hosted[number], epoch_equal=epoch_equal)
            elif epoch_equal:
                raise _refusal("Cannot accept equal epoch with null data")

    def _check_own(self, new: TopicQueueMappingDetail) -> None:
        """Checks that RocketMQ omits: the mapping is of this broker, and its numbers are possible. Raises
        Refusal."""
        own = self._config.broker_name
        if new.bname != own:
            raise _refusal(f"The broker name is not equal {own} != {new.bname} ")
        if new.dirty:
            raise _refusal(f"The mapping info is dirty in broker  {own}")
        if not 0 <= new.total_queues <= MAX_LOGIC_QUEUES:
            raise _refusal(
                f"The total queue number {new.total_queues} is not between 0 and {MAX_LOGIC_QUEUES}"
            )
        for number, parts in new.hosted_queues.items():
            if not 0 <= number < new.total_queues:
                raise _refusal(f"The queue number {number} is not below the total of {new.total_queues}")
            if not 0 < len(parts) <= MAX_PARTS:
                raise _refusal(f"The queue number {number} has {len(parts)} items, not 1 to {MAX_PARTS}")
        self._check_names(new)

    @staticmethod
    def _check_names(new: TopicQueueMappingDetail) -> None:
        """Raises Refusal."""
        brokers = {part.bname for parts in new.hosted_queues.values() for part in parts}
        try:
            check("scope", new.scope)
            for name in brokers:
                if not name or len(name) > MAX_BROKER_NAME:
                    raise _refusal(f"An item has no broker name of 1 to {MAX_BROKER_NAME} characters")
                check("broker", name)
        except IllegalName as error:
            raise _refusal(str(error)) from None

    def update(self, new: TopicQueueMappingDetail, *, force: bool = False) -> None:
        """Take over a mapping from a tool, or an old one with fewer parts. Raises Refusal, TableFull; then nothing
        has changed."""
        detail = self.check(new, force=force)
        self.table[detail.topic or ""] = StaticTopic(detail, self._config.broker_name)
        self._changed()

    def put_back(self, topic: str, before: StaticTopic | None) -> None:
        """Undo an update."""
        self.remove(topic)
        if before is not None:
            self.table.keep(topic, before)
            self._changed()

    def remove_queues(self, topic: str, numbers: Iterable[int]) -> None:
        """Forget logic queues that live elsewhere (cleanItemListMoreThanSecondGen)."""
        old = self.table.get(topic)
        if old is not None:
            gone = set(numbers)
            hosted = {
                number: parts for number, parts in old.detail.hosted_queues.items() if number not in gone
            }
            detail = replace(old.detail, hosted_queues=hosted)
            self.table[topic] = StaticTopic(detail, self._config.broker_name)
            self._changed()

    def remove(self, topic: str) -> None:
        if self.table.pop(topic, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.data_version = self.data_version.next(self._clock.now_ms())
        self.generation += 1

    def follow(self, version: DataVersion, details: Mapping[str, TopicQueueMappingDetail]) -> None:
        """Become a copy of a master's table."""
        if version != self.data_version:
            self._replace(details)
            self.data_version = version
            self.generation += 1

    # --- file ---

    def details(self, topics: Container[str] | None = None) -> dict[str, TopicQueueMappingDetail]:
        """The mappings of these topics, or of all. Takes as long as there are mappings, however many topics."""
        names = self.table if topics is None else filter(topics.__contains__, self.table)
        return {name: self.table[name].detail for name in sorted(names)}

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Returns the encoder of the file. Mappings are replaced, never modified."""
        wrapper = TopicQueueMappingSerializeWrapper(
            topic_queue_mapping_info_map=self.details(), data_version=self.data_version
        )
        return lambda: [fastjson.dumps_pretty(to_document(wrapper)).encode()]

    def load(self, data: bytes) -> None:
        """Raises ProtocolError."""
        wrapper = decode_table(TopicQueueMappingSerializeWrapper, data)
        self._replace(wrapper.topic_queue_mapping_info_map)
        if wrapper.data_version is not None:
            self.data_version = wrapper.data_version

    def _replace(self, details: Mapping[str, TopicQueueMappingDetail]) -> None:
        self.table.clear()
        own = self._config.broker_name
        for topic, detail in sound_only("mappings of static topics", details).items():
            sound = replace(detail, topic=topic, hosted_queues=_sound(topic, detail))
            if sound.bname != own:
                _log.error(
                    "the mapping of static topic %s is of broker %s: this one leads no queue of it",
                    topic,
                    sound.bname,
                )
            self.table.keep(topic, StaticTopic(sound, own))


def _sound(topic: str, detail: TopicQueueMappingDetail) -> dict[int, list[LogicQueueMappingItem]]:
    """The plausible logic queues of a file. Requests for the others are refused."""
    sound = {}
    for number, parts in detail.hosted_queues.items():
        try:
            check_parts(parts)
        except Refusal as refusal:
            _log.error("logic queue %d of static topic %s is left out: %s", number, topic, refusal)
        else:
            sound[number] = parts
    return sound


def _bytes_of(topic: StaticTopic) -> int:
    """An estimate of its names and queues: a part has a name of up to 64 characters."""
    detail, hosted = topic.detail, topic.detail.hosted_queues
    parts = sum(map(len, hosted.values()))
    return weigh((detail.bname, detail.scope)) + _QUEUE_BYTES * len(hosted) + _PART_BYTES * parts


def _refusal(remark: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, remark)
