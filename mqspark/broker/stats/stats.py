"""Counters of a broker and the rates that the tools of RocketMQ show (StoreStatsService, BrokerStatsManager).

Hot paths add to plain integers. Every 10 s ``sample`` records the totals; a rate is the difference of two
samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.clock import DAY_MS, Clock
from mqspark.base.config import Bound
from mqspark.base.histogram import Histogram
from mqspark.broker.stats.meters import MINUTE_SAMPLES, TEN_MINUTE_SAMPLES, Meter, Totals
from mqspark.broker.stats.rpctimes import RpcTimes
from mqspark.broker.tables.topics import Topic
from mqspark.message import SCHEDULE_TOPIC, is_system_topic
from mqspark.protocol.slices import ESSENTIAL, Work

GROUP_TABLES = (
    "GROUP_GET_NUMS",
    "GROUP_GET_SIZE",
    "GROUP_GET_FROM_DISK_NUMS",
    "GROUP_GET_FROM_DISK_SIZE",
    "SNDBCK_PUT_NUMS",
    "GROUP_ACK_NUMS",
    "GROUP_CK_NUMS",
)
"""Tables with a row for each topic@group."""
QUEUE_TABLES = (
    "QUEUE_PUT_NUMS",
    "QUEUE_PUT_SIZE",
    "QUEUE_GET_NUMS",
    "QUEUE_GET_SIZE",
    "TOPIC_PUT_LATENCY",
    "GROUP_GET_LATENCY",
)
"""Tables with a row for each queue: topic@queue and queue@topic of those that count puts and their latency,
topic@queue@group and queue@topic@group of those that count gets."""
DEAD_TABLE, DEAD_ROW = "SNDBCK2DLQ_TIMES", "SEND_BACK_TO_DLQ"
"""A row is owner@topic@group@SEND_BACK_TO_DLQ. There are no owners, so it begins with null, as in RocketMQ."""
BROKER_TABLES = (
    "BROKER_PUT_NUMS",
    "BROKER_GET_NUMS",
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC",
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC",
    "BROKER_ACK_NUMS",
    "BROKER_CK_NUMS",
    "BROKER_GET_FROM_DISK_NUMS",
    "BROKER_GET_FROM_DISK_SIZE",
    "CONSUMER_REGISTER_TIME",
    "PRODUCER_REGISTER_TIME",
)
"""Tables with one row, named after the cluster."""
TIMES_TABLES = "TOPIC_PUT_TIMES", "GROUP_GET_TIMES", "QUEUE_PUT_TIMES", "QUEUE_GET_TIMES"
"""Tables that count the additions to rows. They serve to compute means, and tools do not see them."""
MEANS = {
    "TOPIC_PUT_NUMS": "TOPIC_PUT_TIMES",
    "TOPIC_PUT_SIZE": "TOPIC_PUT_TIMES",
    "GROUP_GET_NUMS": "GROUP_GET_TIMES",
    "GROUP_GET_SIZE": "GROUP_GET_TIMES",
    "QUEUE_PUT_NUMS": "QUEUE_PUT_NUMS",
    "QUEUE_PUT_SIZE": "QUEUE_PUT_NUMS",
    "QUEUE_GET_NUMS": "QUEUE_GET_NUMS",
    "QUEUE_GET_SIZE": "QUEUE_GET_NUMS",
    "TOPIC_PUT_LATENCY": "QUEUE_PUT_TIMES",
    "GROUP_GET_LATENCY": "QUEUE_GET_TIMES",
}
"""Table → the table that counts its additions."""
MOMENT_TABLES = "GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME"
"""Tables with the last value of each queue@topic@group: how far behind the end of the log, and how old, what it read
was. RocketMQ keeps them for its log file, and does not tell tools."""
ACTIVITY_TABLE = "CHANNEL_ACTIVITY"
"""Rows CONNECT, CLOSE, EXCEPTION and IDLE: connections."""
_QUEUE_FIRST = frozenset({"TOPIC_PUT_LATENCY", "GROUP_GET_LATENCY", "QUEUE_PUT_TIMES", "QUEUE_GET_TIMES"})
"""Tables whose rows begin with the queue id."""
_QUEUE_SECOND = frozenset({"QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE", "QUEUE_GET_NUMS", "QUEUE_GET_SIZE"})
_REGISTER_TABLES = frozenset({"CONSUMER_REGISTER_TIME", "PRODUCER_REGISTER_TIME"})
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
FIXED_TABLES = frozenset({*BROKER_TABLES, ACTIVITY_TABLE})


ROWS_AT_ONCE = 64
"""Rows in one slice of a sample: each has up to five meters, which may have to be made, a few microseconds each."""

MAX_COUNTER_BYTES = 512 << 20
_COUNTER_BYTES = 176
_TRAFFIC_BYTES = 360
_EVENTS_BYTES = 900
FINISH_BOUNDS_S = (5, 60, 600, 3_600, 43_200, 86_400)
DELAY_BOUNDS_S = (60, 600, 3_600, 43_200, 86_400, 3 * 86_400)
CREATE_BOUNDS_MS = (10, 100, 1_000, 3_000, 5_000)
"""The buckets of BrokerMetricsManager and DefaultStoreMetricsManager."""
_REVIVAL_BYTES = 4_000
"""With counters for each revive queue."""
_METER_BYTES = 1_200
"""With all samples that it can have."""


class Traffic:
    """What one group received from one queue."""

    __slots__ = ("bytes", "latency_ms", "messages", "popped", "reads")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.reads = 0
        """Answers that had messages."""
        self.popped = 0
        """The messages that have to be acknowledged."""
        self.latency_ms = 0
        """Sum over the reads."""

    def add(self, other: Traffic) -> None:
        self.messages += other.messages
        self.bytes += other.bytes
        self.reads += other.reads
        self.popped += other.popped
        self.latency_ms += other.latency_ms


class TopicEvents:
    """What happened to transactions and timer messages of one topic."""

    __slots__ = ("commits", "delays_s", "finishes_s", "halves", "rollbacks")

    def __init__(self) -> None:
        self.halves = 0
        """Half messages stored since the start and not decided yet."""
        self.commits = 0
        self.rollbacks = 0
        self.finishes_s = Histogram(FINISH_BOUNDS_S)
        """From the birth of a half message to its commit."""
        self.delays_s = Histogram(DELAY_BOUNDS_S)
        """From the birth of a timer message to its delivery time."""

    def committed(self, seconds: int) -> None:
        self.given_up()
        self.commits += 1
        self.finishes_s.record(max(0, seconds))

    def rolled_back(self) -> None:
        self.given_up()
        self.rollbacks += 1

    def given_up(self) -> None:
        self.halves = max(0, self.halves - 1)


class PutLatency:
    """How long messages of one queue took until their guarantee was met."""

    __slots__ = ("max_offset", "total_ms")

    def __init__(self, max_offset: int) -> None:
        self.max_offset = max_offset
        """End of the queue when it was last counted."""
        self.total_ms = 0


class Revival:
    """Records of POP's revive log about one group and one topic. The kind is the record's tag, ck or ack."""

    __slots__ = ("put", "read", "revived")

    def __init__(self) -> None:
        self.put: dict[str, int] = {}
        """By kind."""
        self.read: dict[tuple[int, str], int] = {}
        """By revive queue and kind."""
        self.revived = 0
        """Messages copied to the retry topic."""


_TABLES = (
    "TOPIC_PUT_NUMS",
    "TOPIC_PUT_SIZE",
    *GROUP_TABLES,
    *QUEUE_TABLES,
    *TIMES_TABLES,
    DEAD_TABLE,
    *FIXED_TABLES,
)
"""The rates that are kept by name."""


class Stats:
    def __init__(
        self,
        clock: Clock,
        log_end: int = 0,
        *,
        cluster: str = "DefaultCluster",
        max_bytes: Bound = MAX_COUNTER_BYTES,
        utc_offset_ms: Callable[[int], int] = lambda now_ms: 0,
    ) -> None:
        """``log_end``: the end of the log at start. ``max_bytes``: the limit of rows by topic and group; beyond
        it, events count only in the totals. ``utc_offset_ms``: of local time at a time, for days begin at local
        midnight."""
        self.ledger = Ledger(
            "statistics",
            max_bytes,
            "Stats._tables",
            "Revival.put",
            "Revival.read",
        )
        rows = self.ledger.map
        self._clock = clock
        self._cluster = cluster
        self.first_position = log_end
        self.started_ms = clock.now_ms()
        self.put_messages = 0
        self.put_failures = 0
        self.get_messages = 0
        self.pulls_found = 0
        self.pulls_missed = 0
        self.gets: BoundedMap[tuple[str, str, int], Traffic] = rows(_TRAFFIC_BYTES, in_order=True)
        """(topic, group, queue id) → traffic."""
        self.disk_reads: BoundedMap[tuple[str, str], Traffic] = rows(_TRAFFIC_BYTES)
        """(topic, group) → what it read that is probably not in memory."""
        self.put_latencies: BoundedMap[tuple[str, int], PutLatency] = rows(_COUNTER_BYTES, in_order=True)
        """(topic, queue id) → of queues whose messages ever took a millisecond."""
        self.queue_puts: BoundedMap[tuple[str, int], tuple[int, int]] = rows(_COUNTER_BYTES, in_order=True)
        """(topic, queue id) → messages and bytes of delayed messages and of those sent back (RocketMQ counts no others
        by queue)."""
        self.sent_back: BoundedMap[tuple[str, str], int] = rows(_COUNTER_BYTES)
        """(topic, group) → messages that consumers sent back."""
        self.dead: BoundedMap[tuple[str, str], int] = rows(_COUNTER_BYTES)
        """(topic, group) → messages that became dead letters of the group."""
        self.acks: BoundedMap[tuple[str, str], int] = rows(_COUNTER_BYTES)
        """(topic, group) → popped messages that were acknowledged."""
        self.checks: BoundedMap[tuple[str, str], int] = rows(_COUNTER_BYTES)
        """(topic, group) → check points of POP."""
        self.acked_messages = self.check_points = 0
        self.connected = self.closed = 0
        """Connections since the start."""
        self.broken_and_idle: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Connections closed for an error, and for silence. Set by the shell."""
        self.consumer_registrations_ms: int | None = None
        """Time that registrations took; None until the first."""
        self.producer_registrations_ms: int | None = None
        self.rpc = RpcTimes(clock)
        self.of_topics: BoundedMap[str, TopicEvents] = rows(_EVENTS_BYTES)
        """topic → events that only some topics have."""
        self.creations: dict[tuple[bool, bool, bool], Histogram] = {}
        """(of a topic, not a group; succeeded; is a system topic) → ms that it took."""
        self.get_longest_ms = 0
        """The longest time for which a pull or pop read."""
        self.revivals: BoundedMap[tuple[str, str], Revival] = rows(_REVIVAL_BYTES)
        """(topic, group) → its records in the revive log."""
        self.unfit_messages: BoundedMap[str, int] = rows(_COUNTER_BYTES)  # by topic
        self.junk: Counter[str] = Counter()
        """Invalid records of the broker's own topics that were skipped, by reason."""
        self._totals = {
            name: Totals(TEN_MINUTE_SAMPLES) for name in ("put", "found", "missed", "pulls", "transferred")
        }
        self._watched: dict[str, Callable[[], int]] = {}
        self._ticks = 0
        self._tables: dict[str, BoundedMap[str, Meter]] = {name: rows(_METER_BYTES) for name in _TABLES}
        self._utc_offset_ms = utc_offset_ms
        self._day = self._today(self.started_ms)
        self._system_puts = self._system_gets = 0
        """Messages of system topics, when last counted."""
        self._midnight_put = self._midnight_get = 0
        self._yesterday_put = self._yesterday_get = 0

    def _today(self, now_ms: int) -> int:
        return (now_ms + self._utc_offset_ms(now_ms)) // DAY_MS

    def got(
        self, topic: str, group: str, messages: int, size_bytes: int, queue_id: int = 0, took_ms: int = 0
    ) -> Traffic | None:
        """A group got messages. Returns its traffic; None when there is no room for it."""
        self.get_messages += messages
        self.pulls_found += 1
        traffic = self.gets.get_or_make((topic, group, queue_id), Traffic)
        if traffic is None:
            return None
        traffic.messages += messages
        traffic.bytes += size_bytes
        traffic.reads += 1
        if took_ms:
            self.waited_ms(traffic, took_ms)
        return traffic

    def waited_ms(self, traffic: Traffic, took_ms: int) -> None:
        """Count the duration of a read."""
        traffic.latency_ms += took_ms
        if took_ms > self.get_longest_ms:
            self.get_longest_ms = took_ms

    def delayed_went_on(self, queue_id: int, size_bytes: int) -> None:
        """A delayed message was delivered. RocketMQ counts it as read by a group of its own, and nowhere else."""
        traffic = self.gets.get_or_make((SCHEDULE_TOPIC, SCHEDULE_GROUP, queue_id), Traffic)
        if traffic is not None:
            traffic.messages += 1
            traffic.bytes += size_bytes
            traffic.reads += 1

    def read_from_disk(self, topic: str, group: str, messages: int, size_bytes: int) -> None:
        traffic = self.disk_reads.get_or_make((topic, group), Traffic)
        if traffic is not None:
            traffic.messages += messages
            traffic.bytes += size_bytes

    def puts_took(self, arrivals: Iterable[tuple[str, int, int]], took_ms: int) -> None:
        """The messages before these (topic, queue id, max offset) took a millisecond or more. Those that took less
        change no sum, so they are not counted one by one."""
        latencies = self.put_latencies
        for topic, queue_id, max_offset in arrivals:
            found = latencies.get((topic, queue_id))
            if found is None:
                found = PutLatency(max_offset - 1)
                if not latencies.offer((topic, queue_id), found):
                    continue
            found.total_ms += took_ms * max(0, max_offset - found.max_offset)
            found.max_offset = max_offset

    def put_into_queue(self, topic: str, queue_id: int, size_bytes: int) -> None:
        """A delayed message, or one that was sent back, was stored."""
        key = (topic, queue_id)
        found = self.queue_puts.get(key)
        if found is None:
            self.queue_puts.offer(key, (1, size_bytes))
        else:
            self.queue_puts.replace(key, (found[0] + 1, found[1] + size_bytes))

    def events(self, topic: str) -> TopicEvents:
        """The events of a topic; they are kept when there is room for them."""
        found = self.of_topics.get(topic)
        if found is None:
            found = TopicEvents()
            self.of_topics.offer(topic, found)
        return found

    @contextmanager
    def creating(self, topic: str | None = None) -> Iterator[None]:
        """Count the time in which a topic (None: a group) is created or changed, or in which that fails."""
        began_ms, succeeded = self._clock.monotonic_ms(), False
        try:
            yield
            succeeded = True
        finally:
            key = (topic is not None, succeeded, topic is not None and is_system_topic(topic))
            found = self.creations.get(key)
            if found is None:
                found = self.creations[key] = Histogram(CREATE_BOUNDS_MS)
            found.record(self._clock.monotonic_ms() - began_ms)

    def registered(self, began_ms: int, *, consumers: bool, producers: bool) -> None:
        """A heartbeat with these was processed since ``began_ms`` (monotonic)."""
        took_ms = self._clock.monotonic_ms() - began_ms
        if consumers:
            self.consumer_registrations_ms = (self.consumer_registrations_ms or 0) + took_ms
        if producers:
            self.producer_registrations_ms = (self.producer_registrations_ms or 0) + took_ms

    def in_flight(self, topic: str, group: str, popped: int) -> int:
        """Popped messages of this run that are neither acknowledged nor revived (PopInflightMessageCounter)."""
        key = (topic, group)
        revival = self.revivals.get(key)
        return max(0, popped - self.acks.get(key, 0) - (0 if revival is None else revival.revived))

    def traffic(self) -> Work[dict[tuple[str, str], Traffic]]:
        """(topic, group) → the sum of its queues."""
        sums: dict[tuple[str, str], Traffic] = {}
        for number, key in enumerate(self.gets.in_order, 1):
            if (found := self.gets.get(key)) is not None:
                sums.setdefault(key[:2], Traffic()).add(found)
            if number % ROWS_AT_ONCE == 0:
                yield
        return sums

    def was_sent_back(self, topic: str, group: str) -> None:
        self._count(self.sent_back, topic, group)

    def became_dead(self, topic: str, group: str) -> None:
        self._count(self.dead, topic, group)

    def unfit(self, topic: str, messages: int) -> None:
        found = self.unfit_messages.get(topic)
        if found is None:
            self.unfit_messages.offer(topic, messages)
        else:
            self.unfit_messages.replace(topic, found + messages)

    def were_acked(self, topic: str, group: str, messages: int) -> None:
        self.acked_messages += messages
        self._count(self.acks, topic, group, messages)

    def was_checked(self, topic: str, group: str) -> None:
        """A check point was stored."""
        self.check_points += 1
        self._count(self.checks, topic, group)

    def _count(self, counts: BoundedMap[tuple[str, str], int], topic: str, group: str, more: int = 1) -> None:
        key = (topic, group)
        found = counts.get(key)
        if found is None:
            counts.offer(key, more)
        else:
            counts.replace(key, found + more)

    def revival(self, topic: str, group: str) -> Revival:
        key = (topic, group)
        found = self.revivals.get(key)
        if found is None:
            found = Revival()
            self.revivals.offer(key, found)
        return found

    def watch(self, name: str, total: Callable[[], int]) -> None:
        """Sample a total that is also counted elsewhere."""
        self._watched[name] = total
        self._totals[name] = Totals(TEN_MINUTE_SAMPLES)

    def sample(self, topics: Iterable[Topic], exists: Callable[[str], bool]) -> Work[None]:
        """Every SAMPLE_INTERVAL_MS. ``exists`` tells whether there is a topic of that name; the rows of others go."""
        now_ms = self._clock.now_ms()
        self._ticks += 1
        totals = self._totals
        totals["put"].note(now_ms, self.put_messages)
        totals["found"].note(now_ms, self.pulls_found)
        totals["missed"].note(now_ms, self.pulls_missed)
        totals["pulls"].note(now_ms, self.pulls_found + self.pulls_missed)
        totals["transferred"].note(now_ms, self.get_messages)
        for name, total in self._watched.items():
            totals[name].note(now_ms, total())
        today = self._today(now_ms)
        if today != self._day:
            self._day = today
            self._yesterday_put, self._midnight_put = self._midnight_put, self._own_puts
            self._yesterday_get, self._midnight_get = self._midnight_get, self._own_gets
        return self._sample_rows(topics, exists, now_ms, self._ticks)

    @property
    def _own_puts(self) -> int:
        """Without system topics, whose messages were counted in the last sample."""
        return max(0, self.put_messages - self._system_puts)

    @property
    def _own_gets(self) -> int:
        return max(0, self.get_messages - self._system_gets)

    def _sample_rows(
        self, topics: Iterable[Topic], exists: Callable[[str], bool], now_ms: int, tick: int
    ) -> Work[None]:
        yield from self._drop(lambda topic, group: not exists(topic))
        system_puts = 0
        for number, topic in enumerate(topics, 1):
            if topic.put_count and exists(topic.name):
                self._note("TOPIC_PUT_NUMS", topic.name, now_ms, topic.put_count, tick)
                self._note("TOPIC_PUT_SIZE", topic.name, now_ms, topic.put_bytes, tick)
                if topic.joined_count:
                    times = topic.put_count - topic.joined_count
                    self._note("TOPIC_PUT_TIMES", topic.name, now_ms, times, tick)
                if is_system_topic(topic.name):
                    system_puts += topic.put_count
            if number % ROWS_AT_ONCE == 0:
                yield
        self._system_puts = system_puts
        yield from self._sample_gets(now_ms, tick)
        yield from self._sample_queues(now_ms, tick)
        for table, counted in (
            ("SNDBCK_PUT_NUMS", self.sent_back),
            ("GROUP_ACK_NUMS", self.acks),
            ("GROUP_CK_NUMS", self.checks),
            (DEAD_TABLE, self.dead),
        ):
            for number, key in enumerate(list(counted), 1):
                if (messages := counted.get(key)) is not None:
                    name = "@".join(("null", *key, DEAD_ROW) if table == DEAD_TABLE else key)
                    self._note(table, name, now_ms, messages, tick)
                if number % ROWS_AT_ONCE == 0:
                    yield
        totals = (
            self.put_messages,
            self.get_messages,
            self._own_puts,
            self._own_gets,
            self.acked_messages,
            self.check_points,
            sum(traffic.messages for traffic in self.disk_reads.values()),
            sum(traffic.bytes for traffic in self.disk_reads.values()),
            self.consumer_registrations_ms,
            self.producer_registrations_ms,
        )
        rows = [(table, self._cluster, total) for table, total in zip(BROKER_TABLES, totals, strict=True)]
        broken, idle = self.broken_and_idle()
        rows += [
            (ACTIVITY_TABLE, "CONNECT", self.connected),
            (ACTIVITY_TABLE, "CLOSE", self.closed),
            (ACTIVITY_TABLE, "EXCEPTION", broken),
            (ACTIVITY_TABLE, "IDLE", idle),
        ]
        for table, name, total in rows:
            if total or (total is not None and table in _REGISTER_TABLES):
                self._note(table, name, now_ms, total, tick)

    def _sample_gets(self, now_ms: int, tick: int) -> Work[None]:
        sums: dict[tuple[str, str], Traffic] = {}
        for number, key in enumerate(self.gets.in_order, 1):
            if (traffic := self.gets.get(key)) is not None:
                topic, group, queue_id = key
                sums.setdefault((topic, group), Traffic()).add(traffic)
                if traffic.latency_ms:
                    row = f"{queue_id}@{topic}@{group}"
                    self._note("GROUP_GET_LATENCY", row, now_ms, traffic.latency_ms, tick)
                    self._note("QUEUE_GET_TIMES", row, now_ms, traffic.reads, tick)
                if topic == SCHEDULE_TOPIC:
                    row = f"{topic}@{queue_id}@{group}"
                    self._note("QUEUE_GET_NUMS", row, now_ms, traffic.messages, tick)
                    self._note("QUEUE_GET_SIZE", row, now_ms, traffic.bytes, tick)
            if number % ROWS_AT_ONCE == 0:
                yield
        system_gets = 0
        for number, ((topic, group), traffic) in enumerate(sums.items(), 1):
            row = f"{topic}@{group}"
            self._note("GROUP_GET_NUMS", row, now_ms, traffic.messages, tick)
            self._note("GROUP_GET_SIZE", row, now_ms, traffic.bytes, tick)
            self._note("GROUP_GET_TIMES", row, now_ms, traffic.reads, tick)
            if is_system_topic(topic) and group != SCHEDULE_GROUP:
                system_gets += traffic.messages
            if (read := self.disk_reads.get((topic, group))) is not None:
                self._note("GROUP_GET_FROM_DISK_NUMS", row, now_ms, read.messages, tick)
                self._note("GROUP_GET_FROM_DISK_SIZE", row, now_ms, read.bytes, tick)
            if number % ROWS_AT_ONCE == 0:
                yield
        self._system_gets = system_gets

    def _sample_queues(self, now_ms: int, tick: int) -> Work[None]:
        for number, key in enumerate(self.put_latencies.in_order, 1):
            if (latency := self.put_latencies.get(key)) is not None:
                row = f"{key[1]}@{key[0]}"
                self._note("TOPIC_PUT_LATENCY", row, now_ms, latency.total_ms, tick)
                self._note("QUEUE_PUT_TIMES", row, now_ms, latency.max_offset, tick)
            if number % ROWS_AT_ONCE == 0:
                yield
        for number, key in enumerate(self.queue_puts.in_order, 1):
            if (put := self.queue_puts.get(key)) is not None:
                row = f"{key[0]}@{key[1]}"
                self._note("QUEUE_PUT_NUMS", row, now_ms, put[0], tick)
                self._note("QUEUE_PUT_SIZE", row, now_ms, put[1], tick)
            if number % ROWS_AT_ONCE == 0:
                yield

    def _note(self, table: str, key: str, now_ms: int, total: int, tick: int) -> None:
        meter = self._tables[table].get_or_make(key, lambda: Meter(now_ms))
        if meter is not None:
            meter.note(now_ms, total, tick)

    def forget_group(self, group: str) -> Work[None]:
        return self._drop(lambda topic, of: of == group)

    def _drop(self, is_gone: Callable[[str, str], bool]) -> Work[None]:
        """Remove the rows of a deleted (topic, group); "" where a table has none."""
        counters: tuple[BoundedMap[Any, Any], ...] = (
            self.gets, self.disk_reads, self.put_latencies, self.queue_puts, self.sent_back, self.dead, self.acks,
            self.checks, self.revivals, self.of_topics,
        )  # fmt: skip
        for counted in counters:
            for number, key in enumerate(list(counted), 1):
                names = [key] if isinstance(key, str) else [name for name in key if isinstance(name, str)]
                if is_gone(names[0], names[1] if len(names) > 1 else ""):
                    counted.pop(key, None)
                if number % ROWS_AT_ONCE == 0:
                    yield ESSENTIAL
        for table, rows in self._tables.items():
            if table in FIXED_TABLES:
                continue
            for number, name in enumerate(list(rows), 1):
                if is_gone(*_topic_and_group(table, name)):
                    rows.pop(name, None)
                if number % ROWS_AT_ONCE == 0:
                    yield ESSENTIAL

    @property
    def is_full_minute(self) -> bool:
        """Whether the last sample completed a minute."""
        return self._ticks % (MINUTE_SAMPLES - 1) == 0

    def per_second(self, table: str, key: str) -> float:
        """Over the last minute; 0.0 if unknown."""
        meter = self._tables[table].get(key)
        return 0.0 if meter is None else meter.minute.per_second()

    def meter(self, table: str, key: str) -> Meter | None:
        """None if unknown."""
        return None if table in TIMES_TABLES else self._row(table, key)

    def times(self, table: str, key: str) -> Meter | None:
        """How often something was added to a row; None: as often as its sum says."""
        return self._row(MEANS.get(table, ""), key)

    def _row(self, table: str, key: str) -> Meter | None:
        rows = self._tables.get(table)
        return None if rows is None else rows.get(key)

    def rates(self, name: str) -> str:
        """The means of the last 10 s, minute and ten minutes, separated by spaces."""
        totals = self._totals[name]
        return " ".join(
            str(totals.per_second(samples)) for samples in (2, MINUTE_SAMPLES, TEN_MINUTE_SAMPLES)
        )

    def recent(self, name: str) -> float:
        """Per second, in the last 10 s."""
        return self._totals[name].per_second(2)

    def day_counters(self) -> dict[str, str]:
        return {
            "msgPutTotalYesterdayMorning": str(self._yesterday_put),
            "msgPutTotalTodayMorning": str(self._midnight_put),
            "msgPutTotalTodayNow": str(self._own_puts),
            "msgGetTotalYesterdayMorning": str(self._yesterday_get),
            "msgGetTotalTodayMorning": str(self._midnight_get),
            "msgGetTotalTodayNow": str(self._own_gets),
        }


def _topic_and_group(table: str, row: str) -> tuple[str, str]:
    if table == DEAD_TABLE:
        row = row.removeprefix("null@").removesuffix("@" + DEAD_ROW)
    elif table in _QUEUE_FIRST:
        row = row.partition("@")[2]
    topic, _, group = row.partition("@")
    if table in _QUEUE_SECOND:
        group = group.partition("@")[2]
    return topic, group
