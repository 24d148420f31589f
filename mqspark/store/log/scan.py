"""Checks many records of the log at once: the fast path of recovery.

The rules are those of ``mqspark.record.record.check_record`` and ``Recovery._record_at``, applied to columns: only
the chain of sizes is followed step by step. A run ends before the first record that breaks a rule; the caller
checks that one alone.

Must not know queues or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.base.crc import crc32
from mqspark.base.propertystring import ITEM_END
from mqspark.message import BORN_HOST_V6, HOST_FLAGS, STORE_HOST_V6
from mqspark.record.record import TAGS_START, is_seal_broken, tags_code
from mqspark.record.recordlayout import (
    AT,
    HEADS,
    MAGIC_BYTE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    SIZE,
    V6_EXTRA_BYTES,
    columns,
)
from mqspark.store.disk.layout import is_storable_topic
from mqspark.store.log.record_tables import Layout, find_layouts

MAX_RUN_RECORDS = 16384
MIN_RUN_RECORDS = 32
"""Below this number, setting up the columns costs more than checking the records one by one."""
_SHORT_RECORD_BYTES = 512
"""Up to this size, searching all bytes for magics is faster than one Python step per record."""
_WINDOW_BYTES = 1 << 20
_LEAST_SHARE = 32
"""A name that fewer records have than one of so many ends the comparison by columns."""
_MAX_ROW_BYTES = 512
"""Longer property strings are processed one by one."""
_MAX_HASHED_BYTES = 32
_STOP = ord(ITEM_END)
_EVEN_RECORDS = 1024
"""Number of records of one size that form a run of their own."""
_MAX_TOPIC_BYTES = 256
"""Longer names are processed one by one."""
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Masks of the first n bytes of a little-endian word."""
_BODIES_AT_ONCE = 2048
_COPIED_BODY_BYTES = 448
"""Python has a fast allocator for objects up to 512 bytes."""
_HEAD: np.dtype[np.void] = np.dtype(
    columns("magic", "crc", "queue_id", "queue_offset", "position", "sys_flag", "store_ms", "body_bytes")
)
"""The head of a record whose hosts are IPv4."""

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Run:
    """Columns of consecutive valid records."""

    end: int
    """End of the last record, relative to the view."""
    positions: Int64s
    """Physical offsets."""
    sizes: Int64s
    queue_ids: Int64s
    queue_offsets: Int64s
    sys_flags: Int64s
    store_timestamps_ms: Int64s
    topic_ids: Int64s
    """Indexes into ``topics``."""
    topics: list[str]
    view: memoryview
    topic_starts: Int64s
    property_starts: Int64s
    property_ends: Int64s
    """Ends of the encoded properties, relative to the view, as ``topic_starts`` is."""
    _layouts: tuple[list[Layout], Int64s] | None = None

    @property
    def end_position(self) -> int:
        """Physical offset of the end of the last record."""
        return int(self.positions[-1]) + int(self.sizes[-1])

    def properties_of(self, index: int) -> bytes:
        return self.view[int(self.property_starts[index]) : int(self.property_ends[index])].tobytes()

    @property
    def properties(self) -> list[bytes]:
        """Encoded properties of every record; a new list at each call."""
        bounds = zip(self.property_starts.tolist(), self.property_ends.tolist(), strict=True)
        return [self.view[first:last].tobytes() for first, last in bounds]

    def first(self, count: int, text_bytes: int) -> Run:
        """At most so many records, with at most so many bytes of topics and properties if there are several."""
        texts = self.property_ends - self.topic_starts
        if int(texts.sum()) > text_bytes:
            count = max(1, min(count, int(np.searchsorted(np.cumsum(texts), text_bytes, "right"))))
        if count >= len(self.positions):
            return self
        return Run(
            end=int(self.property_ends[count - 1]),
            positions=self.positions[:count],
            sizes=self.sizes[:count],
            queue_ids=self.queue_ids[:count],
            queue_offsets=self.queue_offsets[:count],
            sys_flags=self.sys_flags[:count],
            store_timestamps_ms=self.store_timestamps_ms[:count],
            topic_ids=self.topic_ids[:count],
            topics=self.topics,
            view=self.view,
            topic_starts=self.topic_starts[:count],
            property_starts=self.property_starts[:count],
            property_ends=self.property_ends[:count],
        )

    def layouts(self) -> tuple[list[Layout], Int64s]:
        """The layouts of the records and the indexes of those without one; computed once."""
        if self._layouts is None:
            self._layouts = find_layouts(
                self.view, self.topic_starts, self.property_starts, self.property_ends
            )
        return self._layouts

    def tags_codes(self) -> Int64s:
        """``mqspark.record.record.tags_code`` of every record."""
        codes = np.zeros(len(self.positions), np.int64)
        layouts, rest = self.layouts()
        for layout in layouts:
            if b"TAGS" in layout.values:
                codes[layout.rows] = layout.hashes(*layout.values[b"TAGS"]).view(np.int32)
        codes[rest] = tags_codes(self.view, self.property_starts[rest], self.property_ends[rest])
        return codes


def read_run(
    view: memoryview,
    low: int,
    limit: int,
    base: int,
    *,
    verify_crc: bool,
    verify_property_crc: bool = False,
    min_records: int = MIN_RUN_RECORDS,
) -> Run | None:
    """The valid records from ``low`` on, at most 16,384, none of them beyond ``limit``.

    None when the first is not valid, or when there cannot be ``min_records``. ``base`` is the physical offset
    of the view's first byte.
    """
    found = _even_run(view, low, limit, base) or _any_run(view, low, limit, base, min_records)
    if found is None:
        return None
    good, heads, starts, ends, body_starts, body_lengths, topic_starts, property_starts, store_times_ms = (
        found
    )
    count = _leading(good)
    if verify_crc and count:
        crcs = _crcs(view, body_starts[:count], body_lengths[:count])
        count = _leading((body_lengths[:count] == 0) | (crcs == heads["crc"][:count]))
    if verify_property_crc and count:
        bounds = zip(starts[:count].tolist(), ends[:count].tolist(), strict=True)
        count = _leading(np.array([not is_seal_broken(view[first:last]) for first, last in bounds]))
    topic_ids, names = _distinct(view, topic_starts[:count], property_starts[:count] - 2)
    topics = [name.decode("utf-8", "replace") for name in names]
    storable = np.array([is_storable_topic(topic) for topic in topics], np.bool_)
    if not storable.all():
        count = _leading(storable[topic_ids])
    if not count:
        return None
    starts = starts[:count]
    return Run(
        end=int(ends[count - 1]),
        positions=starts + base,
        sizes=ends[:count] - starts,
        queue_ids=heads["queue_id"][:count].astype(np.int64),
        queue_offsets=heads["queue_offset"][:count].astype(np.int64),
        sys_flags=heads["sys_flag"][:count].astype(np.int64),
        store_timestamps_ms=store_times_ms[:count].astype(np.int64),
        topic_ids=topic_ids[:count],
        topics=topics,
        view=view,
        topic_starts=topic_starts[:count],
        property_starts=property_starts[:count],
        property_ends=ends[:count],
    )


class _Records(NamedTuple):
    """Columns of consecutive records, of which the first ones are valid. The values of the others are
    meaningless."""

    good: npt.NDArray[np.bool_]
    heads: npt.NDArray[np.void]
    starts: Int64s
    ends: Int64s
    body_starts: Int64s
    body_lengths: Int64s
    topic_starts: Int64s
    property_starts: Int64s
    store_times_ms: npt.NDArray[np.integer]


def _any_run(view: memoryview, low: int, limit: int, base: int, min_records: int) -> _Records | None:
    """The records of a run of mixed sizes. None when there are fewer than ``min_records``."""
    if not _has_records(view, low, limit, min_records):
        return None
    starts, position = chain(view, low, limit)
    if len(starts) < min_records:
        return None
    ends = np.append(starts[1:], position)
    column = _Columns(view, limit)
    heads = column.heads(starts)
    sys_flags = heads["sys_flag"].astype(np.int64)
    store_times_ms = heads["store_ms"]
    body_starts = starts + HEADS[0].size
    body_lengths = heads["body_bytes"].astype(np.int64)
    if (sys_flags & HOST_FLAGS).any():
        born_extra = (sys_flags & BORN_HOST_V6 != 0) * V6_EXTRA_BYTES
        body_starts += born_extra + (sys_flags & STORE_HOST_V6 != 0) * V6_EXTRA_BYTES
        store_times_ms = column.i64(starts + AT["store_ms"] + born_extra)
        body_lengths = column.i32(body_starts - 4)
    is_wide = heads["magic"] == MAGIC_V2
    topic_length_bytes = 1 + is_wide if is_wide.any() else 1
    good = (heads["magic"] == MAGIC_V1) | is_wide
    good &= (body_lengths >= 0) & (body_starts + body_lengths + 2 + topic_length_bytes <= ends)
    if not good.all():
        # The lengths of an invalid record are arbitrary: replace them by zero.
        body_lengths = np.where(good, body_lengths, 0)
        body_starts = np.where(good, body_starts, starts)
    body_ends = body_starts + body_lengths
    topic_starts = body_ends + topic_length_bytes
    topic_lengths = column.u8(body_ends)
    if is_wide.any():
        topic_lengths = np.where(is_wide, column.i16(body_ends), topic_lengths)
    property_starts = topic_starts + topic_lengths + 2
    good &= (topic_lengths > 0) & (property_starts <= ends)
    property_lengths = column.i16(np.where(good, property_starts - 2, starts))
    good &= (property_lengths >= 0) & (property_starts + property_lengths == ends)
    good &= (property_lengths == 0) | (column.u8(ends - 1) != 0)
    good &= heads["position"] == starts + base
    return _Records(
        good, heads, starts, ends, body_starts, body_lengths, topic_starts, property_starts, store_times_ms
    )


def _even_run(view: memoryview, low: int, limit: int, base: int) -> _Records | None:
    """The same for very many records with equal lengths, whose fields are strided columns of the view. None
    when the records differ."""
    if limit - low < MIN_RECORD_BYTES:
        return None
    (size,) = SIZE.unpack_from(view, low)
    most = min((limit - low) // size, MAX_RUN_RECORDS) if size >= MIN_RECORD_BYTES else 0
    if most < _EVEN_RECORDS:
        return None

    def column(dtype: str | np.dtype[np.void], at: int) -> npt.NDArray[Any]:
        return np.ndarray((most,), dtype, buffer=view, offset=low + at, strides=(size,))

    heads = column(_HEAD, 0)
    magic, body_length = int(heads["magic"][0]), int(heads["body_bytes"][0])
    is_wide = magic == MAGIC_V2
    body_end = HEADS[0].size + body_length
    topic_at = body_end + 1 + is_wide
    if not (magic == MAGIC_V1 or is_wide) or body_length < 0 or topic_at + 2 > size:
        return None
    topic_lengths = column(">i2" if is_wide else "u1", body_end)
    topic_length = int(topic_lengths[0])
    properties_at = topic_at + topic_length + 2
    if topic_length <= 0 or properties_at > size:
        return None
    good = column(">i4", 0) == size
    good &= heads["magic"] == magic
    good &= heads["sys_flag"] & HOST_FLAGS == 0
    good &= heads["body_bytes"] == body_length
    good &= topic_lengths == topic_length
    good &= column(">i2", properties_at - 2) == size - properties_at
    if size > properties_at:
        good &= column("u1", size - 1) != 0
    starts = low + np.arange(most) * size
    good &= heads["position"] == starts + base
    if _leading(good) < min(most, _EVEN_RECORDS):
        return None
    return _Records(
        good,
        heads,
        starts,
        starts + size,
        starts + HEADS[0].size,
        np.full(most, body_length),
        starts + topic_at,
        starts + properties_at,
        heads["store_ms"],
    )


def _crcs(view: memoryview, starts: Int64s, lengths: Int64s) -> Int64s:
    """CRCs of the bodies, in the form that records have. Below some kilobytes the cost of a CRC is that of
    the call."""
    length = int(lengths[0])
    crcs = np.empty(len(starts), np.int64)
    if 0 < length <= _COPIED_BODY_BYTES and (lengths == length).all():
        # Creating all small objects at once is cheaper than one slice each, while they fit into the
        # processor's cache.
        every = np.ndarray((len(view) - length + 1,), f"V{length}", buffer=view, strides=(1,))
        for low in range(0, len(starts), _BODIES_AT_ONCE):
            bodies = every[starts[low : low + _BODIES_AT_ONCE]].tolist()
            crcs[low : low + len(bodies)] = np.fromiter(map(crc32, bodies), np.uint32, len(bodies))
    else:
        bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        crcs[:] = np.fromiter((crc32(view[first:last]) for first, last in bounds), np.uint32, len(starts))
    crcs &= 0x7FFFFFFF
    return crcs


def chain(view: memoryview, low: int, limit: int) -> tuple[Int64s, int]:
    """Starts of the records when each ends where its size says, and the end of the last one; at most 16,384."""
    unpack_size = SIZE.unpack_from
    last_head = limit - MIN_RECORD_BYTES
    (size,) = unpack_size(view, low) if low <= last_head else (0,)
    if size >= MIN_RECORD_BYTES:
        found = _even_chain(view, low, limit, size)
        if found is None and size <= _SHORT_RECORD_BYTES:
            found = _short_chain(view, low, limit)
        if found is not None:
            return found
    starts: list[int] = []
    position = low
    for _ in range(MAX_RUN_RECORDS):
        if position > last_head:
            break
        (size,) = unpack_size(view, position)
        if size < MIN_RECORD_BYTES or position + size > limit:
            break
        starts.append(position)
        position += size
    return np.array(starts, np.int64), position


def _has_records(view: memoryview, low: int, limit: int, count: int) -> bool:
    """Whether so many sizes follow one another. For few records, as a slave gets them, this is cheaper than columns."""
    last_head = limit - MIN_RECORD_BYTES
    for _ in range(count):
        if low > last_head:
            return False
        (size,) = SIZE.unpack_from(view, low)
        low += size
        if size < MIN_RECORD_BYTES or low > limit:
            return False
    return True


def _even_chain(view: memoryview, low: int, limit: int, size: int) -> tuple[Int64s, int] | None:
    """The same when all records, or very many, have the size of the first."""
    most = min((limit - low) // size, MAX_RUN_RECORDS)
    if most < MIN_RUN_RECORDS:
        return None
    count = _leading(np.ndarray((most,), ">i4", buffer=view, offset=low, strides=(size,)) == size)
    if count < min(most, _EVEN_RECORDS):
        return None
    return low + np.arange(count) * size, low + count * size


def _short_chain(view: memoryview, low: int, limit: int) -> tuple[Int64s, int] | None:
    """The same by searching for all magics at once, which is faster for short records.

    Ends before a position where the chain and the magics disagree, because a body may contain a magic. None
    when that is soon.
    """
    window = min(limit, low + _WINDOW_BYTES) - low
    octets = np.frombuffer(view[low : low + window], np.uint8)
    at = np.flatnonzero(octets[4 : window - 3] == MAGIC_BYTE)
    every = np.ndarray((window - 3,), "<i4", buffer=view[low : low + window], strides=(1,))
    magics = every[at + AT["magic"]].byteswap()
    at = at[(magics == MAGIC_V1) | (magics == MAGIC_V2)][:MAX_RUN_RECORDS]
    ends = at + every[at].byteswap()
    linked = ends[:-1] == at[1:]
    count = _leading(linked) + 1
    # Nothing confirms the size of the last one.
    while count and (
        count > len(at) or not at[count - 1] + MIN_RECORD_BYTES <= ends[count - 1] <= limit - low
    ):
        count -= 1
    if count < MIN_RUN_RECORDS or at[0] != 0:
        return None
    return at[:count] + low, int(ends[count - 1]) + low


def _distinct(view: memoryview, starts: Int64s, ends: Int64s) -> tuple[Int64s, list[bytes]]:
    """The distinct texts at these places, and for each place the index of its text.

    All places are compared with the first text, then the remaining ones with the first of those, and so on
    while each comparison finds many.
    """
    lengths = ends - starts
    if _is_one(view, starts, lengths):
        return np.zeros(len(starts), np.int64), [view[int(starts[0]) : int(ends[0])].tobytes()]
    ids = np.full(len(starts), -1, np.int64)
    names: list[bytes] = []
    columns, is_in_columns = _words_of(view, starts, lengths)
    left = len(starts)
    while left:
        first = int(np.argmin(ids))
        if not is_in_columns[first]:
            break
        low, length = int(starts[first]), int(lengths[first])
        same = (lengths == length) & is_in_columns
        for column in columns[: -(-length // 8)]:
            same &= column == column[first]
        found = int(np.count_nonzero(same))
        ids[same] = len(names)
        names.append(view[low : low + length].tobytes())
        left -= found
        if found * _LEAST_SHARE < left:
            break
    if left:
        known = {name: index for index, name in enumerate(names)}
        for index in np.flatnonzero(ids < 0).tolist():
            name = view[int(starts[index]) : int(ends[index])].tobytes()
            ids[index] = known.setdefault(name, len(known))
        names = list(known)
    return ids, names


def _is_one(view: memoryview, starts: Int64s, lengths: Int64s) -> bool:
    """Whether all texts are the same, as those of most runs are. False also where this is not seen at once."""
    length = int(lengths[0]) if len(lengths) else 0
    if not 0 < length <= _MAX_TOPIC_BYTES or not (lengths == length).all():
        return False
    width = 8 if length >= 8 else 1
    every = np.ndarray((len(view) - width + 1,), f"u{width}", buffer=view, strides=(1,))
    for at in (*range(0, length - width, width), length - width):
        words = every[starts + at]
        if not (words == words[0]).all():
            return False
    return True


def _words_of(
    view: memoryview, starts: Int64s, lengths: Int64s
) -> tuple[list[npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]:
    """The texts as columns of eight bytes, padded with zeros, and a mask of the texts included. Very long
    texts and those at the very end of the view are not."""
    last = len(view) - 8
    is_in = lengths <= _MAX_TOPIC_BYTES
    widest = int(lengths.max(initial=0, where=is_in))
    is_in &= starts <= last - widest
    if not widest or not is_in.any():
        return [], np.zeros(len(starts), np.bool_)
    every = np.ndarray((last + 1,), "<u8", buffer=view, strides=(1,))
    shortest = int(lengths.min())
    places = starts if is_in.all() else np.minimum(starts, last - widest)
    columns = []
    for at in range(0, widest, 8):
        words = every[places + at]
        if shortest < at + 8:
            count = np.clip(lengths - at, 0, 8) if shortest < widest else min(widest - at, 8)
            words &= _FIRST_BYTES[count]
        columns.append(words)
    return columns, is_in


def tags_codes(view: memoryview, starts: Int64s, ends: Int64s) -> Int64s:
    """The hash of the tags in each of these encoded property strings, 0 without tags.

    The strings become the rows of a table, with 0x02 before and after each. A property name then lies between
    a 0x02 and a 0x01, and its value ends at the next 0x02.
    """
    codes = np.zeros(len(starts), np.int64)
    if not len(starts):
        return codes
    lengths = ends - starts
    width = int(min(lengths.max(), _MAX_ROW_BYTES)) + 2
    in_table = (lengths <= width - 2) & (starts + (width - 1) <= len(view)) & (starts > 0)
    others = np.flatnonzero(~in_table)
    rows = np.flatnonzero(in_table)
    if len(rows):
        every = np.ndarray((len(view) - width + 1, width), np.uint8, buffer=view, strides=(1, 1))
        table = every[starts[rows] - 1]
        table[:, 0] = _STOP
        table[np.arange(len(rows)), lengths[rows] + 1] = _STOP
        text = table.ravel()
        stops = np.flatnonzero(text == _STOP)
        number, low, high = _tags_values(text, stops, width, lengths[rows])
        hashes, is_plain = _hash(text, low, high)
        codes[rows[number]] = hashes
        others = np.concatenate((others, rows[number[~is_plain]]))
    for index in others.tolist():
        codes[index] = tags_code(view[int(starts[index]) : int(ends[index])].tobytes())
    return codes


def _tags_values(
    text: npt.NDArray[np.uint8], stops: Int64s, width: int, lengths: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Row, start and end of the last TAGS of each row that has one."""
    at = stops[stops < len(text) - len(TAGS_START) - 1]
    for distance, letter in enumerate(TAGS_START, 1):
        at = at[text[at + distance] == letter]
    row, column = np.divmod(at, width)
    inside = column + len(TAGS_START) <= lengths[row]
    at, row = at[inside], row[inside]
    if len(row) > 1:
        last = np.append(row[1:] != row[:-1], True)
        at, row = at[last], row[last]
    return row, at + len(TAGS_START) + 1, stops[np.searchsorted(stops, at) + 1]


def _hash(text: npt.NDArray[np.uint8], low: Int64s, high: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Java's hash of each text, and whether it is valid: only short ASCII texts are hashed here."""
    lengths = high - low
    is_plain = lengths <= _MAX_HASHED_BYTES
    hashes = np.zeros(len(low), np.uint32)
    for distance in range(int(lengths[is_plain].max(initial=0))):
        inside = lengths > distance
        letters = text[np.minimum(low + distance, len(text) - 1)]
        hashes = np.where(inside, hashes * np.uint32(31) + letters, hashes)
        is_plain &= ~(inside & (letters >= 0x80))
    return hashes.view(np.int32).astype(np.int64), is_plain


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """Number of true values before the first false one."""
    return len(good) if good.all() else int(np.argmin(good))


class _Columns:
    """Big-endian integers at any byte of a view. A place too close to the end reads the last one that fits."""

    def __init__(self, view: memoryview, limit: int) -> None:
        self._view = view
        self._limit = limit

    def _gather(self, dtype: str, places: Int64s) -> Int64s:
        width = int(dtype[-1])
        shape = (self._limit - width + 1,)
        every = np.ndarray(shape, dtype, buffer=self._view, strides=(1,))
        # Native integers are swapped afterwards: gathering a foreign byte order takes twice as long.
        values: Int64s = every[np.minimum(places, shape[0] - 1)].byteswap().astype(np.int64)
        return values

    def heads(self, starts: Int64s) -> npt.NDArray[np.void]:
        """``_HEAD`` at each start: one step for all fields."""
        shape = (self._limit - _HEAD.itemsize + 1,)
        every = np.ndarray(shape, f"V{_HEAD.itemsize}", buffer=self._view, strides=(1,))
        heads: npt.NDArray[np.void] = every[starts].view(_HEAD)
        return heads

    def u8(self, places: Int64s) -> Int64s:
        return self._gather("u1", places)

    def i16(self, places: Int64s) -> Int64s:
        return self._gather("<i2", places)

    def i32(self, places: Int64s) -> Int64s:
        return self._gather("<i4", places)

    def i64(self, places: Int64s) -> Int64s:
        return self._gather("<i8", places)
