"""Many records of the log at once: what recovery reads when nothing is wrong.

The same rules as ``mqspark.record.check_record`` and ``Recovery._record_at``, as columns: the chain of sizes
is walked one by one, everything else is gathered for the whole run. A run ends before the first record that
breaks a rule; who called looks at that one by itself. Must not know queues or files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqspark.crc import crc32
from mqspark.record import HEADS, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, is_seal_broken, tags_code
from mqspark.store.layout import is_storable_topic
from mqspark.store.layouts import Layout, find_layouts

__all__ = ["Run", "chain", "read_run", "tags_codes"]

MAX_RUN_RECORDS = 4096
MIN_RUN_RECORDS = 32
"""Below, setting up the columns costs more than looking at the records one by one."""
_SHORT_RECORD_BYTES = 512
"""Up to here reading all bytes for magics is faster than a step in Python a record."""
_WINDOW_BYTES = 1 << 20
_MAGIC_BYTE = 0xDA
"""Both magics begin with it."""
_FEW = 32
_MAX_ROW_BYTES = 512
"""Longer property strings are looked at one by one."""
_MAX_HASHED_BYTES = 32
_STOP = 0x02
_TAGS = b"TAGS\x01"
_I32 = struct.Struct(">i")
_IPV6_EXTRA_BYTES = 12

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Run:
    """Columns of consecutive valid records."""

    end: int
    """Where the last one ends, relative to the view."""
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
    """Of the encoded properties, relative to the view, as ``topic_starts`` is."""
    _alike: tuple[list[Layout], Int64s] | None = None

    def properties_of(self, index: int) -> bytes:
        return self.view[int(self.property_starts[index]) : int(self.property_ends[index])].tobytes()

    @property
    def properties(self) -> list[bytes]:
        """Of every record; made anew at each call."""
        bounds = zip(self.property_starts.tolist(), self.property_ends.tolist(), strict=True)
        return [self.view[first:last].tobytes() for first, last in bounds]

    def alike(self) -> tuple[list[Layout], Int64s]:
        """The layouts of the records, and those that have none; looked for once."""
        if self._alike is None:
            self._alike = find_layouts(self.view, self.topic_starts, self.property_starts, self.property_ends)
        return self._alike

    def tags_codes(self) -> Int64s:
        """``mqspark.record.tags_code`` of every record."""
        codes = np.zeros(len(self.positions), np.int64)
        layouts, rest = self.alike()
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
    """The valid records from ``low`` on, at most 4096, none of them beyond ``limit``.

    None when the first is not one, or when there cannot be ``min_records``.
    ``base`` is the physical offset of the view's first byte.
    """
    starts, position = chain(view, low, limit)
    if len(starts) < min_records:
        return None
    ends = np.append(starts[1:], position)
    column = _Columns(view, limit)
    magics = column.i32(starts + 4)
    sys_flags = column.i32(starts + 36)
    born_extra = ((sys_flags >> 4) & 1) * _IPV6_EXTRA_BYTES
    head_bytes = HEADS[0].size + born_extra + ((sys_flags >> 5) & 1) * _IPV6_EXTRA_BYTES
    wide = (magics == MAGIC_V2).astype(np.int64)
    body_starts = starts + head_bytes
    body_lengths = column.i32(body_starts - 4)
    good = (magics == MAGIC_V1) | (magics == MAGIC_V2)
    good &= (body_lengths >= 0) & (body_starts + body_lengths + 3 + wide <= ends)
    # Where a record is not good its lengths point anywhere: let them point at itself.
    body_ends = np.where(good, body_starts + body_lengths, starts)
    topic_starts = body_ends + 1 + wide
    topic_lengths = np.where(wide == 1, column.i16(body_ends), column.u8(body_ends))
    properties_starts = topic_starts + topic_lengths + 2
    good &= (topic_lengths > 0) & (properties_starts <= ends)
    properties_lengths = column.i16(np.where(good, properties_starts - 2, starts))
    good &= (properties_lengths >= 0) & (properties_starts + properties_lengths == ends)
    good &= (properties_lengths == 0) | (column.u8(ends - 1) != 0)
    good &= column.i64(starts + 28) == starts + base
    count = _leading(good)
    if verify_crc and count:
        bounds = zip(body_starts[:count].tolist(), body_ends[:count].tolist(), strict=True)
        crcs = np.array([crc32(view[first:last]) for first, last in bounds], np.int64) & 0x7FFFFFFF
        count = _leading((body_lengths[:count] == 0) | (crcs == column.i32(starts[:count] + 8)))
    if verify_property_crc and count:
        bounds = zip(starts[:count].tolist(), ends[:count].tolist(), strict=True)
        count = _leading(np.array([not is_seal_broken(view[first:last]) for first, last in bounds]))
    topic_ids, names = _distinct(view, topic_starts[:count], properties_starts[:count] - 2)
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
        queue_ids=column.i32(starts + 12),
        queue_offsets=column.i64(starts + 20),
        sys_flags=sys_flags[:count],
        store_timestamps_ms=column.i64(starts + 56 + born_extra[:count]),
        topic_ids=topic_ids[:count],
        topics=topics,
        view=view,
        topic_starts=topic_starts[:count],
        property_starts=properties_starts[:count],
        property_ends=ends[:count],
    )


def chain(view: memoryview, low: int, limit: int) -> tuple[Int64s, int]:
    """Where records begin if each ends where its size says, and where the last of them ends; at most 4096."""
    unpack_size = _I32.unpack_from
    last_head = limit - MIN_RECORD_BYTES
    if low <= last_head and MIN_RECORD_BYTES <= unpack_size(view, low)[0] <= _SHORT_RECORD_BYTES:
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


def _short_chain(view: memoryview, low: int, limit: int) -> tuple[Int64s, int] | None:
    """The same by looking for all magics at once, which is faster than a step a record when these are short.

    Ends before a place where the chain and the magics disagree, for a body may hold a magic; None when that is soon.
    """
    window = min(limit, low + _WINDOW_BYTES) - low
    octets = np.frombuffer(view[low : low + window], np.uint8)
    at = np.flatnonzero(octets[4 : window - 3] == _MAGIC_BYTE)
    every = np.ndarray((window - 3,), "<i4", buffer=view[low : low + window], strides=(1,))
    magics = every[at + 4].byteswap()
    at = at[(magics == MAGIC_V1) | (magics == MAGIC_V2)][:MAX_RUN_RECORDS]
    ends = at + every[at].byteswap()
    linked = ends[:-1] == at[1:]
    count = _leading(linked) + 1
    while count and (count > len(at) or ends[count - 1] > limit - low):
        count -= 1
    if count < MIN_RUN_RECORDS or at[0] != 0:
        return None
    return at[:count] + low, int(ends[count - 1]) + low


def _distinct(view: memoryview, starts: Int64s, ends: Int64s) -> tuple[Int64s, list[bytes]]:
    """The different texts among these places, and for each place the index of its own.

    The first text is looked for in all places at once, then the first of those that are left, and so on as long as that
    finds many.
    """
    lengths = ends - starts
    ids = np.zeros(len(starts), np.int64)
    names: list[bytes] = []
    left = np.arange(len(starts))
    while len(left):
        length = int(lengths[left[0]])
        first = int(starts[left[0]])
        name = view[first : first + length].tobytes()
        every = np.ndarray((len(view) - length + 1, length), np.uint8, buffer=view, strides=(1, 1))
        same = lengths[left] == length
        same[same] = (every[starts[left[same]]] == np.frombuffer(name, np.uint8)).all(axis=1)
        ids[left[same]] = len(names)
        names.append(name)
        found, left = int(same.sum()), left[~same]
        if found * _FEW < len(left):
            break
    known = {name: index for index, name in enumerate(names)}
    for index in left.tolist():
        name = view[int(starts[index]) : int(ends[index])].tobytes()
        ids[index] = known.setdefault(name, len(known))
    return ids, list(known)


def tags_codes(view: memoryview, starts: Int64s, ends: Int64s) -> Int64s:
    """The hash of the tags in each of these encoded property strings, 0 without tags.

    The strings become the rows of a table, each with 0x02 before it and behind it; a property's name then stands
    between a 0x02 and a 0x01, and its value ends at the next 0x02.
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
    """Row, start and end of the last TAGS in each row that has any."""
    at = stops[stops < len(text) - len(_TAGS) - 1]
    for distance, letter in enumerate(_TAGS, 1):
        at = at[text[at + distance] == letter]
    row, column = np.divmod(at, width)
    inside = column + len(_TAGS) <= lengths[row]
    at, row = at[inside], row[inside]
    if len(row) > 1:
        last = np.append(row[1:] != row[:-1], True)
        at, row = at[last], row[last]
    return row, at + len(_TAGS) + 1, stops[np.searchsorted(stops, at) + 1]


def _hash(text: npt.NDArray[np.uint8], low: Int64s, high: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Java's hash of each text, and whether it is right: only short ASCII ones are hashed here."""
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
    """How many are true before the first that is not."""
    return len(good) if good.all() else int(np.argmin(good))


class _Columns:
    """Big-endian integers at any byte of a view. A place too near to the end reads the last one that fits."""

    def __init__(self, view: memoryview, limit: int) -> None:
        self._view = view
        self._limit = limit

    def _gather(self, dtype: str, places: Int64s) -> Int64s:
        width = int(dtype[-1])
        shape = (self._limit - width + 1,)
        every = np.ndarray(shape, dtype, buffer=self._view, strides=(1,))
        # Native integers swapped afterwards: gathering a foreign byte order takes twice as long.
        values: Int64s = every[np.minimum(places, shape[0] - 1)].byteswap().astype(np.int64)
        return values

    def u8(self, places: Int64s) -> Int64s:
        return self._gather("u1", places)

    def i16(self, places: Int64s) -> Int64s:
        return self._gather("<i2", places)

    def i32(self, places: Int64s) -> Int64s:
        return self._gather("<i4", places)

    def i64(self, places: Int64s) -> Int64s:
        return self._gather("<i8", places)
