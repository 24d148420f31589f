"""Counters of a broker and the rates that the tools of RocketMQ show (StoreStatsService, BrokerStatsManager).

Hot paths add to plain integers. Every 10 s ``sample`` records the totals; a rate is the difference of two
samples.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from mqspark.bounded import ENTRY_BYTES, Ledger, text_bytes
from mqspark.broker.state.topics import Topic
from mqspark.clock import Clock
from mqspark.message import is_system_topic
from mqspark.protocol.slices import ESSENTIAL, Work

__all__ = ["Meter", "Revival", "Stats", "Traffic", "SAMPLE_INTERVAL_MS"]

SAMPLE_INTERVAL_MS = 10_000
MINUTE_SAMPLES = 7
TEN_MINUTE_SAMPLES = 61
TICKS_PER_HOUR_NOTE = 60
"""A row is sampled for its hour every ten minutes."""
TICKS_PER_DAY_NOTE = 360
"""A row is sampled for its day every hour."""
DAY_MS = 86_400_000
GROUP_TABLES = "GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS", "GROUP_ACK_NUMS", "GROUP_CK_NUMS"
"""Tables with a row for each topic@group."""
DEAD_TABLE, DEAD_ROW = "SNDBCK2DLQ_TIMES", "SEND_BACK_TO_DLQ"
"""A row is owner@topic@group@SEND_BACK_TO_DLQ. There are no owners, so it begins with null, as in RocketMQ."""
BROKER_TABLES = (
    "BROKER_PUT_NUMS",
    "BROKER_GET_NUMS",
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC",
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC",
    "BROKER_ACK_NUMS",
    "BROKER_CK_NUMS",
)
"""Tables with one row, named after the cluster."""
ACTIVITY_TABLE = "CHANNEL_ACTIVITY"
"""Rows CONNECT and CLOSE: connections."""
FIXED_TABLES = frozenset({*BROKER_TABLES, ACTIVITY_TABLE})


ROWS_AT_ONCE = 256
"""Rows in one slice of a sample."""

MAX_BYTES = 512 << 20
_COUNTER_BYTES = ENTRY_BYTES + 176
_REVIVAL_BYTES = ENTRY_BYTES + 4_000
"""With counters for each revive queue."""
_METER_BYTES = ENTRY_BYTES + 1_200
"""With all samples that it can have."""


class Totals:
    """Samples of a total: (ms, total), oldest first."""

    __slots__ = ("_length", "_notes")

    def __init__(self, length: int = MINUTE_SAMPLES) -> None:
        self._length = 2 * length
        self._notes = array("q")
        """ms and total alternately, compact because a broker has one for every topic and group."""

    def note(self, now_ms: int, total: int) -> None:
        notes = self._notes
        notes.append(now_ms)
        notes.append(total)
        if len(notes) > self._length:
            del notes[:2]

    def per_second(self, samples: int = MINUTE_SAMPLES) -> float:
        """The mean rate between the last sample and the one ``samples`` - 1 before it."""
        notes = self._notes
        if len(notes) < 4:
            return 0.0
        last_ms, last = notes[-2:]
        at = max(0, len(notes) - 2 * samples)
        first_ms, first = notes[at : at + 2]
        return (last - first) * 1000 / (last_ms - first_ms) if last_ms > first_ms else 0.0

    def growth(self) -> int:
        return self._notes[-1] - self._notes[1] if self._notes else 0


class Meter:
    """One row of a table over the last minute, hour and day (StatsItem). A new row counts from 0 one interval
    before its first sample, so that the event that created it is included."""

    __slots__ = ("day", "hour", "minute")

    def __init__(self, now_ms: int) -> None:
        self.minute = Totals(MINUTE_SAMPLES)
        self.hour = Totals(7)
        self.day = Totals(25)
        self.minute.note(now_ms - SAMPLE_INTERVAL_MS, 0)
        self.hour.note(now_ms - TICKS_PER_HOUR_NOTE * SAMPLE_INTERVAL_MS, 0)
        self.day.note(now_ms - TICKS_PER_DAY_NOTE * SAMPLE_INTERVAL_MS, 0)

    def note(self, now_ms: int, total: int, tick: int) -> None:
        self.minute.note(now_ms, total)
        if tick % TICKS_PER_HOUR_NOTE == 0:
            self.hour.note(now_ms, total)
        if tick % TICKS_PER_DAY_NOTE == 0:
            self.day.note(now_ms, total)


class Traffic:
    """What one group received from one topic."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


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


class Stats:
    def __init__(
        self,
        clock: Clock,
        log_end: int = 0,
        *,
        cluster: str = "DefaultCluster",
        max_bytes: Callable[[], int] = lambda: MAX_BYTES,
    ) -> None:
        """``log_end``: the end of the log at start. ``max_bytes``: the limit of rows by topic and group; beyond
        it, events count only in the totals."""
        self.ledger = Ledger(
            "statistics",
            max_bytes,
            "Stats.gets",
            "Stats.sent_back",
            "Stats.dead",
            "Stats.acks",
            "Stats.checks",
            "Stats.revivals",
            "Stats._tables",
            "Revival.put",
            "Revival.read",
            setting="maxStatisticsBytes",
        )
        self._clock = clock
        self._cluster = cluster
        self.first_position = log_end
        self.started_ms = clock.now_ms()
        self.put_messages = 0
        self.put_failures = 0
        self.get_messages = 0
        self.get_bytes = 0
        self.pulls_found = 0
        self.pulls_missed = 0
        self.gets: dict[tuple[str, str], Traffic] = {}
        """(topic, group) → traffic."""
        self.sent_back: dict[tuple[str, str], int] = {}
        """(topic, group) → messages that consumers sent back."""
        self.dead: dict[tuple[str, str], int] = {}
        """(topic, group) → messages that became dead letters of the group."""
        self.acks: dict[tuple[str, str], int] = {}
        """(topic, group) → popped messages that were acknowledged."""
        self.checks: dict[tuple[str, str], int] = {}
        """(topic, group) → check points of POP."""
        self.acked_messages = self.check_points = 0
        self.connected = self.closed = 0
        """Connections since the start."""
        self.get_longest_ms = 0
        """The longest time for which a pull or pop read."""
        self.revivals: dict[tuple[str, str], Revival] = {}
        """(topic, group) → its records in the revive log."""
        self.junk: Counter[str] = Counter()
        """Invalid records of the broker's own topics that were skipped, by reason."""
        self._totals = {
            name: Totals(TEN_MINUTE_SAMPLES) for name in ("put", "found", "missed", "pulls", "transferred")
        }
        self._watched: dict[str, Callable[[], int]] = {}
        self._ticks = 0
        self._tables: dict[str, dict[str, Meter]] = {
            name: {}
            for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", *GROUP_TABLES, DEAD_TABLE, *FIXED_TABLES)
        }
        self._day = self.started_ms // DAY_MS
        self._midnight_put = self._midnight_get = 0
        self._yesterday_put = self._yesterday_get = 0

    def got(self, topic: str, group: str, messages: int, size_bytes: int) -> None:
        self.get_messages += messages
        self.get_bytes += size_bytes
        self.pulls_found += 1
        key = (topic, group)
        traffic = self.gets.get(key)
        if traffic is None:
            if not self._has_room(_COUNTER_BYTES, topic, group):
                return
            traffic = self.gets[key] = Traffic()
        traffic.messages += messages
        traffic.bytes += size_bytes

    def was_sent_back(self, topic: str, group: str) -> None:
        self._count(self.sent_back, topic, group)

    def became_dead(self, topic: str, group: str) -> None:
        self._count(self.dead, topic, group)

    def were_acked(self, topic: str, group: str, messages: int) -> None:
        self.acked_messages += messages
        self._count(self.acks, topic, group, messages)

    def was_checked(self, topic: str, group: str) -> None:
        """A check point was stored."""
        self.check_points += 1
        self._count(self.checks, topic, group)

    def _count(self, counts: dict[tuple[str, str], int], topic: str, group: str, more: int = 1) -> None:
        key = (topic, group)
        if key in counts or self._has_room(_COUNTER_BYTES, topic, group):
            counts[key] = counts.get(key, 0) + more

    def revival(self, topic: str, group: str) -> Revival:
        key = (topic, group)
        found = self.revivals.get(key)
        if found is None:
            found = Revival()
            if self._has_room(_REVIVAL_BYTES, topic, group):
                self.revivals[key] = found
        return found

    def _has_room(self, row_bytes: int, *names: str) -> bool:
        """Whether there is room for a row; if so, its bytes are counted."""
        size_bytes = row_bytes + text_bytes(*names)
        has_room = self.ledger.has_room(size_bytes)
        if has_room:
            self.ledger.note(size_bytes)
        return has_room

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
        if now_ms // DAY_MS != self._day:
            self._day = now_ms // DAY_MS
            self._yesterday_put, self._midnight_put = self._midnight_put, self.put_messages
            self._yesterday_get, self._midnight_get = self._midnight_get, self.get_messages
        return self._sample_rows(topics, exists, now_ms, self._ticks)

    def _sample_rows(
        self, topics: Iterable[Topic], exists: Callable[[str], bool], now_ms: int, tick: int
    ) -> Work[None]:
        yield from self._drop(lambda topic, group: not exists(topic))
        system_puts = system_gets = 0
        for number, topic in enumerate(topics, 1):
            if topic.put_count and exists(topic.name):
                self._note("TOPIC_PUT_NUMS", topic.name, now_ms, topic.put_count, tick)
                self._note("TOPIC_PUT_SIZE", topic.name, now_ms, topic.put_bytes, tick)
                if is_system_topic(topic.name):
                    system_puts += topic.put_count
            if number % ROWS_AT_ONCE == 0:
                yield
        for number, key in enumerate(list(self.gets), 1):
            if (traffic := self.gets.get(key)) is not None:
                name = "@".join(key)
                self._note("GROUP_GET_NUMS", name, now_ms, traffic.messages, tick)
                self._note("GROUP_GET_SIZE", name, now_ms, traffic.bytes, tick)
                if is_system_topic(key[0]):
                    system_gets += traffic.messages
            if number % ROWS_AT_ONCE == 0:
                yield
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
            self.put_messages - system_puts,
            self.get_messages - system_gets,
            self.acked_messages,
            self.check_points,
        )
        rows = [(table, self._cluster, total) for table, total in zip(BROKER_TABLES, totals, strict=True)]
        rows += [(ACTIVITY_TABLE, "CONNECT", self.connected), (ACTIVITY_TABLE, "CLOSE", self.closed)]
        for table, name, total in rows:
            if total > 0:
                self._note(table, name, now_ms, total, tick)

    def _note(self, table: str, key: str, now_ms: int, total: int, tick: int) -> None:
        meter = self._tables[table].get(key)
        if meter is None:
            if not self._has_room(_METER_BYTES, key):
                return
            meter = self._tables[table][key] = Meter(now_ms)
        meter.note(now_ms, total, tick)

    def forget_group(self, group: str) -> Work[None]:
        return self._drop(lambda topic, of: of == group)

    def _drop(self, is_gone: Callable[[str, str], bool]) -> Work[None]:
        """Remove the rows of a deleted (topic, group); "" where a table has none."""
        counters: tuple[dict[tuple[str, str], Any], ...] = (
            self.gets,
            self.sent_back,
            self.dead,
            self.acks,
            self.checks,
            self.revivals,
        )
        for counted in counters:
            row_bytes = _REVIVAL_BYTES if counted is self.revivals else _COUNTER_BYTES
            for number, key in enumerate(list(counted), 1):
                if is_gone(*key) and counted.pop(key, None) is not None:
                    self.ledger.free(row_bytes + text_bytes(*key))
                if number % ROWS_AT_ONCE == 0:
                    yield ESSENTIAL
        for table, rows in self._tables.items():
            if table in FIXED_TABLES:
                continue
            for number, name in enumerate(list(rows), 1):
                if is_gone(*_topic_and_group(table, name)) and rows.pop(name, None) is not None:
                    self.ledger.free(_METER_BYTES + text_bytes(name))
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
        return self._tables.get(table, {}).get(key)

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
            "msgPutTotalTodayNow": str(self.put_messages),
            "msgGetTotalYesterdayMorning": str(self._yesterday_get),
            "msgGetTotalTodayMorning": str(self._midnight_get),
            "msgGetTotalTodayNow": str(self.get_messages),
        }


def _topic_and_group(table: str, row: str) -> tuple[str, str]:
    if table == DEAD_TABLE:
        row = row.removeprefix("null@").removesuffix("@" + DEAD_ROW)
    topic, _, group = row.partition("@")
    return topic, group
