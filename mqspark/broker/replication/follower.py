"""The slave's half of replication: a log that is a copy of a master's (DefaultHAClient). Bytes of the connection in,
reports out.

    connect     the first report: where the copy is to go on
    received    appends what the master sends, once complete records of it are checked
    report      the position to report now, if any

A slave reports what it has as safely as its flushDiskType says: under SYNC_FLUSH only what is synced. (RocketMQ's
slave reports what is in its memory.) Its first report lies a little before its end, so that it can compare its own
tail with the master's bytes: a log that differs is noticed before anything is appended to it. It is taken back to the
last record that both have (``store.upkeep.cutback``), and the copy goes on from there. A log that has no record in
common with its master's is left alone.

A slave without a log asks for everything, unless syncFromLastFile is set. Because 0 asks for the newest segment, it
asks from byte 1 on: byte 0 is the first byte of a record's size, which is 0 below 16 MiB.

Must not know sockets or what a record is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mqspark.base.clock import Clock
from mqspark.base.config import INT64_MAX
from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.halink import HaLink
from mqspark.errors import NotNow, ProtocolError
from mqspark.protocol.bodies.replica_bodies import HAClientRuntimeInfo
from mqspark.protocol.servers.haframes import DataFrames, encode_report
from mqspark.record.recordlayout import SIZE, record_size
from mqspark.store.store import MessageStore

CHECK_BYTES = 1 << 20
"""Bytes of the tail that are compared with the master's, beside all that was not known to be synced at start."""

MAX_UNWRITTEN_BYTES = 16 << 20
"""While more is appended and not synced, no more is read."""

MAX_REST_BYTES = 128 << 20
"""While more is received and not appended, no more is read; twice the largest record."""

WIDEN_FACTOR = 16
"""How much more is compared when everything compared differs."""


class FollowerDiverged(ProtocolError):
    """The master's log differs from the one here, first at ``position``."""

    def __init__(self, position: int, consequence: str) -> None:
        super().__init__(f"its log differs from the one here at {position}: {consequence}")
        self.position = position


class CutRefused(ProtocolError):
    """The master's log differs from a log that is sound: following it could take back what is confirmed."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(
            f"its log differs from the one here at {position}, {why}: nothing is taken back here, because one of the"
            " two logs is damaged, an older copy or another broker's; put the right one back, or move the store"
            " directory of the wrong one away, which copies the other one then"
        )
        self.position = position


class Healer(Protocol):
    """What becomes of records that differ from the master's (``loghealing``)."""

    @property
    def is_whole(self) -> bool:
        """Whether the log here is compared and healed so far that this slave may count as in sync."""

    def is_damage(self, position: int) -> bool:
        """Whether a record here that differs from the master's is damaged, and will be healed."""

    def dispute(self, position: int) -> None:
        """Called for a sound record here for which the master is refused."""


class Follower(HaLink):
    """One slave's copy; lives longer than its connections."""

    def __init__(self, config: BrokerConfig, store: MessageStore, clock: Clock, healer: Healer) -> None:
        super().__init__(config, clock)
        self._store = store
        self._healer = healer
        self.address: str | None = None
        """The master's HA address while there is a connection to it."""
        self.begin = 0
        """The position asked for first on this connection."""
        self.check_bytes = CHECK_BYTES
        self._sure = store.status.sure_position
        """Everything before is as it was written; behind it a power cut may have left holes."""
        self._end_connection()
        self.master_end = -1
        """The last known end of the master's log; -1 if unknown."""
        self.refused_since_ms: int | None = None
        """Since when the masters of this log are refused by CutRefused (monotonic); None once one can be followed."""

    def _end_connection(self) -> None:
        self._frames = DataFrames()
        self._next: int | None = None
        self._parts: list[bytes | memoryview] = []
        self._rest_bytes = 0
        """Length of ``_parts``, which begin with an incomplete record."""
        self._wanted_bytes = 0
        """Bytes without which there is nothing to append."""
        self._skip = 0
        """Bytes of padding that are still to come."""
        self._compared = self._compare_end = self._compare_from = 0
        self._reported = -1
        self._is_empty = self._may_widen = False

    def connect(self, address: str, master_begin: int, master_end: int) -> bytes:
        """The first report on a new connection. The master's log spans ``master_begin`` to ``master_end``, 0 to
        INT64_MAX if unknown.

        Raises ProtocolError if this log cannot be continued by that one, and NotNow while some of it is unwritten.
        """
        store = self._store
        begin, end = store.log.min_offset, store.log.position
        if store.log.unwritten_bytes:
            raise NotNow("the log here is still being written")
        if store.copy.is_cutting:
            raise NotNow("the end of the log here is being taken back")
        if end > begin and master_begin > end:
            raise ProtocolError(
                f"its log begins at {master_begin}, but the one here ends at {end}: the part between is gone;"
                " move the store directory away to copy the whole log"
            )
        self._end_connection()
        self.address, self.master_end = address, master_end
        self.heard_ms = self._said_ms = self._clock.monotonic_ms()
        self._is_empty = begin == end
        if self._is_empty:
            self._sure = INT64_MAX
            first = self._first_of_empty(master_begin, master_end)
            if first == 1:
                self._next, self._parts, self._rest_bytes = 1, [b"\0"], 1
        else:
            least, wanted = max(begin, master_begin, 1), min(end, master_end, self._sure) - self.check_bytes
            first = max(least, wanted)
            self._may_widen = wanted > least
            self._next = self._compared = first
            self._compare_from = first if first > 1 else begin  # byte 0 is the same everywhere
        self._compare_end = end
        self._reported = self.begin = first
        return self._encode(first)

    def _first_of_empty(self, master_begin: int, master_end: int) -> int:
        """The first report without a log."""
        is_newest = self._config.sync_from_last_file or master_begin == master_end
        return 0 if is_newest else master_begin or 1

    @property
    def ha_master_address(self) -> str | None:
        """The address that is configured, if any."""
        return self._config.ha_master_address

    def disconnected(self) -> None:
        self.address = None
        self._end_connection()

    def received(self, data: bytes) -> None:
        """Raises ProtocolError for a master that cannot be followed, and FollowerDiverged. Raises StoreError when the
        store takes nothing more."""
        self.heard_ms = self._clock.monotonic_ms()
        self._copied_bytes += len(data)
        for position, part in self._parse(data):
            self._accept(position, part)
        if self._rest_bytes >= self._wanted_bytes:
            self.take_rest()

    def _parse(self, data: bytes) -> Iterable[tuple[int, memoryview]]:
        return self._frames.receive_data(data)

    def _accept(self, position: int, part: memoryview) -> None:
        if self._next is None:
            if not part:
                return
            self._next = position
        if position != self._next:
            raise ProtocolError(f"it sends its log from {position} on, but {self._next} was next")
        if self._is_empty and part:
            self._is_empty = False
            begin = position - self._rest_bytes
            if begin != self._store.log.position:
                self._store.copy.begin_at(begin)
        self._next += len(part)
        self.master_end = max(self.master_end, self._next)
        self._parts.append(part)
        self._rest_bytes += len(part)

    @property
    def next_position(self) -> int:
        """Where the master's next record belongs."""
        return self._compared if self._compared < self._compare_end else self._store.log.position

    def take_rest(self) -> None:
        """Append what is complete of the bytes received."""
        data = memoryview(b"".join(self._parts))
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if self._compared < self._compare_end:
            data = self._compare(data)
        if data and self._compared >= self._compare_end:
            before = self._store.log.position
            try:
                self._store.copy.append(data)
            except NotNow:
                self._keep(data, before)
                raise
            self._keep(data, before)
        else:
            self._hold(data)

    def _keep(self, data: memoryview, before: int) -> None:
        done = self._store.log.position - before
        self._skip = max(0, done - len(data))
        self._hold(data[done:])

    def _hold(self, rest: memoryview) -> None:
        """Keep the beginning of a record, whose size was checked."""
        self._parts, self._rest_bytes = [bytes(rest)], len(rest)
        self._wanted_bytes = record_size(rest) if len(rest) >= SIZE.size else 0

    def _compare(self, data: memoryview) -> memoryview:
        """Compare with the tail of the log here; returns what comes after it."""
        while len(data) and self._compared < self._compare_end:
            own = self._store.copy.log_bytes(
                self._compared, min(len(data), self._compare_end - self._compared)
            )
            if not own:  # a segment is missing, or shorter than it was
                raise self._diverged(self._compared)
            if data[: len(own)] != own:
                same = next(index for index, octet in enumerate(own) if octet != data[index])
                position = self._compared + same
                raise self._diverged(position)
            self._compared += len(own)
            data = data[len(own) :]
        if self._compared >= self._compare_end:
            self._sure, self.check_bytes = INT64_MAX, CHECK_BYTES
            self.refused_since_ms = None
        return data

    def _diverged(self, position: int) -> ProtocolError:
        """A record has its time and its queue offset, so logs that share a whole record share what is before it."""
        common = self._store.copy.last_whole_record(self._compare_from, position)
        begin = self._first_different(common)
        if begin is not None and self._healer.is_damage(begin):
            return FollowerDiverged(position, f"the record here at {begin} is damaged, and is healed first")
        if common is None and not self._may_widen and self._may_start_over:
            common = self._store.log.min_offset
        if common is not None:
            self.take_back(common)
            self.check_bytes = CHECK_BYTES
            return FollowerDiverged(position, f"the log here is taken back to {common}")
        if self._may_widen:
            self.check_bytes *= WIDEN_FACTOR
            return FollowerDiverged(position, f"{self.check_bytes} bytes are compared next")
        return FollowerDiverged(
            position,
            "they have no record in common; move the store directory away to copy that log, or correct brokerName",
        )

    @property
    def refused_ms(self) -> int:
        """For how long whoever is the master has been refused by CutRefused; 0 if it is not."""
        return 0 if self.refused_since_ms is None else self._clock.monotonic_ms() - self.refused_since_ms

    def _first_different(self, common: int | None) -> int | None:
        """Where the record begins that differs, behind the last ``common`` one. None if more has to be compared."""
        if common is None and not self._may_widen:  # all of the log was compared
            return self._compare_from
        return common

    @property
    def _may_start_over(self) -> bool:
        """Whether a log that has nothing in common with its master's is taken back as a whole."""
        return False

    def take_back(self, position: int) -> None:
        """Take the log back to ``position``, the end of a record."""
        self._store.copy.cut_back(position)

    @property
    def has_room(self) -> bool:
        return self._store.log.unwritten_bytes < MAX_UNWRITTEN_BYTES and self._rest_bytes < MAX_REST_BYTES

    @property
    def position(self) -> int:
        """How far this log is known to be the master's, and stored as flushDiskType says."""
        if self._compared < self._compare_end:
            return self._compared
        return min(self._store.pipeline.stored_end, self._next or 0)

    @property
    def is_agreed(self) -> bool:
        """Whether the ends of both logs were compared on this connection."""
        return self.address is not None and self._compared >= self._compare_end

    @property
    def _reportable(self) -> int:
        return self.position if self._healer.is_whole else self.begin

    def _encode(self, position: int) -> bytes:
        return encode_report(position)

    def report(self) -> bytes:
        """What to send now: the position when it has grown, or nothing was sent for haSendHeartbeatInterval."""
        if self.address is None:
            return b""
        position, now_ms = self._reportable, self._clock.monotonic_ms()
        if position <= self._reported and now_ms - self._said_ms < self._beat_ms:
            return b""
        self._reported, self._said_ms = max(position, self._reported), now_ms
        return self._encode(self._reported)

    @property
    def behind_bytes(self) -> int:
        return max(0, self.master_end - self._store.log.position)

    def info(self) -> HAClientRuntimeInfo:
        passed_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        return HAClientRuntimeInfo(
            master_addr=self.address,
            transferred_byte_in_second=self.bytes_per_s,
            max_offset=self._store.log.position,
            last_read_timestamp=self.heard_ms + passed_ms,
            last_write_timestamp=self._said_ms + passed_ms,
            master_flush_offset=0,
        )
