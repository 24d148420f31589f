"""The SQL92 filters of consumer groups as RocketMQ keeps them in ``consumerFilter.json`` (ConsumerFilterManager).

Pulls take a group's filter from its live subscription. This table is for the file alone: a RocketMQ broker that gets
the store directory finds its filters with their positions in its Bloom filter, and those that it left are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from mqspark.base.bounded import CONTAINER_BYTES, BoundedMap, Ledger, weigh
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.base.names import sound_only
from mqspark.broker.config import BrokerConfig
from mqspark.errors import InvalidFilter
from mqspark.filter.bloom import BloomFilter
from mqspark.filter.sql import check_sql
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import Body, decode_table, to_document
from mqspark.protocol.bodies.client_bodies import SubscriptionData
from mqspark.protocol.slices import Work

DEAD_AT_LOAD_MS = 30_000
"""Groups without members when the file is read count as gone since then, as in RocketMQ."""

CLEANED_AT_ONCE = 2_048

_FILTER_BYTES = 400


class BloomFilterData(Body):
    bit_num: int = 0
    bit_pos: list[int] = msgspec.field(default_factory=list)


class ConsumerFilterData(Body):
    topic: str = ""
    consumer_group: str = ""
    expression: str = ""
    expression_type: str = ""
    client_version: int = 0
    """The subscription's version: a client's clock."""
    born_time: int = 0
    dead_time: int = 0
    """When its group disappeared; 0 while the group exists."""
    bloom_filter_data: BloomFilterData | None = None


class FilterDataMapByTopic(Body):
    topic: str = ""
    group_filter_data: dict[str, ConsumerFilterData] = msgspec.field(default_factory=dict)


class ConsumerFilterTable(Body):
    filter_data_by_topic: dict[str, FilterDataMapByTopic] = msgspec.field(default_factory=dict)


class ConsumerFilters:
    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self.ledger = Ledger(
            "consumer filters",
            Limit(config, "max_group_table_bytes"),
        )
        self._config = config
        self._clock = clock
        self._bloom = BloomFilter(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._table: BoundedMap[str, BoundedMap[str, ConsumerFilterData]] = self.ledger.map(CONTAINER_BYTES)
        """Topic → group → filter. Filters are replaced, never modified."""
        self.generation = 0

    def find(self, topic: str, group: str) -> ConsumerFilterData | None:
        filters = self._table.get(topic)
        return None if filters is None else filters.get(group)

    def subscribed(self, group: str, data: SubscriptionData) -> None:
        """A member has subscribed with a filter. Ignored when the table is full or has a later version: pulls do not
        depend on it."""
        topic, expression = data.topic, data.sub_string
        old = self.find(topic, group)
        if not expression or (old is not None and data.sub_version < old.client_version):
            return
        if old is not None and data.sub_version == old.client_version:
            if old.dead_time:
                self._replace(_with(old, dead_time=0))
            return
        new = ConsumerFilterData(
            topic=topic,
            consumer_group=group,
            expression=expression,
            expression_type=data.expression_type,
            client_version=data.sub_version,
            born_time=self._clock.now_ms(),
            bloom_filter_data=self._positions(topic, group),
        )
        if old is not None and (old.expression, old.expression_type) == (expression, new.expression_type):
            new.born_time = old.born_time
        filters = self._of(topic)
        if filters.offer(group, new):
            self.generation += 1
        elif not filters:
            del self._table[topic]

    def unsubscribed(self, group: str, topic: str) -> None:
        """Nobody of the group filters the topic any more. The filter stays for filterDataCleanTimeSpan."""
        old = self.find(topic, group)
        if old is not None and not old.dead_time:
            self._replace(_with(old, dead_time=self._clock.now_ms()))

    def clean(self) -> Work[None]:
        """Remove the filters whose group has been gone for long."""
        oldest_ms = self._clock.now_ms() - self._config.filter_data_clean_time_span
        done = 0
        for topic in list(self._table):
            for group in list(self._table.get(topic, ())):
                found = self.find(topic, group)
                if found is not None and found.dead_time and found.dead_time <= oldest_ms:
                    self._remove(found)
                done += 1
                if done % CLEANED_AT_ONCE == 0:
                    yield

    def _positions(self, topic: str, group: str) -> BloomFilterData:
        found = self._bloom.positions(f"{group}#{topic}".encode(errors="replace"))
        return BloomFilterData(bit_num=self._bloom.bits, bit_pos=found)

    def _of(self, topic: str) -> BoundedMap[str, ConsumerFilterData]:
        filters = self._table.get(topic)
        if filters is None:
            filters = self._table.inner_map(_FILTER_BYTES, weigh)
            self._table.keep(topic, filters)
        return filters

    def _replace(self, data: ConsumerFilterData) -> None:
        self._of(data.topic).keep(data.consumer_group, data)
        self.generation += 1

    def _remove(self, data: ConsumerFilterData) -> None:
        filters = self._table[data.topic]
        del filters[data.consumer_group]
        if not filters:
            del self._table[data.topic]
        self.generation += 1

    # --- file ---

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Returns the encoder of the file. It leaves out what does not compile: RocketMQ would let everything pass."""
        table = {topic: list(filters.values()) for topic, filters in self._table.items()}

        def encode() -> Iterator[bytes]:
            rows: dict[str, object] = {}
            for topic in sorted(table):
                filters = {
                    each.consumer_group: {**to_document(each), "dead": each.dead_time > 0}
                    for each in sorted(table[topic], key=lambda each: each.consumer_group)
                    if _compiles(each)
                }
                if filters:
                    rows[topic] = {"groupFilterData": filters, "topic": topic}
            return fastjson.pretty_pieces({"filterDataByTopic": rows})

        return encode

    def load(self, data: bytes) -> None:
        """From ``consumerFilter.json``. Raises ProtocolError."""
        known = decode_table(ConsumerFilterTable, data)
        now_ms = self._clock.now_ms()
        for topic, filters in sound_only("topics of filters", known.filter_data_by_topic).items():
            for group, each in sound_only("groups of filters", filters.group_filter_data).items():
                dead_ms = each.dead_time or max(now_ms - DEAD_AT_LOAD_MS, each.born_time)
                bloom = each.bloom_filter_data
                if bloom is None or (bloom.bit_num, len(bloom.bit_pos)) != (
                    self._bloom.bits,
                    self._bloom.hashes,
                ):
                    bloom = self._positions(topic, group)
                self._replace(
                    _with(each, topic=topic, consumer_group=group, dead_time=dead_ms, bloom_filter_data=bloom)
                )
        self.generation = 0


def _with(data: ConsumerFilterData, **changes: object) -> ConsumerFilterData:
    return msgspec.structs.replace(data, **changes)


def _compiles(data: ConsumerFilterData) -> bool:
    try:
        check_sql(data.expression)
    except InvalidFilter:
        return False
    return True
