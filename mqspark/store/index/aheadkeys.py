"""What is known of the keys of records ahead of the index, so that it need not read these records again.

Two kinds of stretches of the log are known: those without keys, and those of plain messages, whose unique ids were at
hand when they were stored. All else is read. What is known is never needed: after a restart, and of what finds no
room here, the index reads the records.

Must not know the log's files, nor the index.
"""

from __future__ import annotations

import bisect
import functools
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.base.propertystring import find_property, mark
from mqspark.message import KEYS, TAGS, TRANSACTION_MASK, UNIQ_KEY, java_hash
from mqspark.store.index.keys import NO_KEYS, Ints, KeyColumns, index_hash, index_hashes, tag_key

MAX_RECORDS = 16_384
"""Limit of the records whose unique ids are kept: several times of what comes before the index follows. Each takes at
most MAX_KEY_BYTES and some 40 bytes, or 140 when it has a store time of its own."""
MAX_ROWS = 256
MAX_KEY_BYTES = 64
LEAST_RECORDS = 512
"""Fewer in a row are read with what is around them: each row costs two stages more, which is what it costs to read so
many."""
_UNIQUE = mark(UNIQ_KEY)[1:].encode()
_TAGS = mark(TAGS)[1:].encode()
_KEYS = mark(KEYS)[1:].encode()
_NO_TAG = -1


class KeyForm(NamedTuple):
    """What keys of plain messages have in common."""

    key_bytes: int
    """Length of a unique id, which is ASCII."""
    seed: int
    """Hash of the topic and the # behind it, modulo 2^32."""
    tag_hash: int
    """That of the entry for their tag, _NO_TAG without one."""

    @staticmethod
    def of(topic: str, properties: bytes, sys_flag: int) -> KeyForm | None:
        """That of a message and those which differ from it in the unique id only. None: their keys are to be read."""
        unique_id = find_property(properties, UNIQ_KEY.encode())
        if (
            not unique_id
            or len(unique_id) > MAX_KEY_BYTES
            or sys_flag & TRANSACTION_MASK
            or _KEYS in properties
            or properties.count(_UNIQUE) > 1
            or properties.count(_TAGS) > 1
            or not properties.isascii()
        ):
            return None
        tag = find_property(properties, TAGS.encode())
        tag_hash = index_hash(topic, tag_key(tag.decode())) if tag else _NO_TAG
        return _form(len(unique_id), java_hash(f"{topic}#") & 0xFFFFFFFF, tag_hash)


_form = functools.lru_cache(1024)(KeyForm)
"""Equal ones are one, so that a look is enough to compare them."""


class _Since(NamedTuple):
    """From this record of a row on, all have this store time and form."""

    first: int
    store_ms: int
    form: KeyForm


_first = attrgetter("first")


class KnownRow:
    """Known records without a gap: all without keys, or all with unique ids of one length."""

    __slots__ = ("_marks", "_taken", "end", "form", "ids", "key_bytes", "sizes", "start", "store_ms")

    def __init__(self, start: int, key_bytes: int) -> None:
        self.start = self.end = start
        self.key_bytes = key_bytes
        """0 without keys."""
        self.ids = bytearray()
        self.sizes: list[int] = []
        self.form: KeyForm | None = None
        self.store_ms = 0
        """Form and store time of the last record."""
        self._marks: list[_Since] = []
        self._taken = 0
        """Records that the index has, of those here."""

    def __len__(self) -> int:
        """Records with keys that the index does not have."""
        return len(self.sizes) - self._taken

    def mark(self, form: KeyForm, store_ms: int) -> None:
        """From the next record on, they have these."""
        self.form, self.store_ms = form, store_ms
        self._marks.append(_Since(len(self.sizes), store_ms, form))

    def columns(self, end: int, most: int) -> tuple[KeyColumns, int, int]:
        """At most so many keys, or those of one record, from the first one on, of records that are complete at ``end``;
        of how many records, and where the next one begins."""
        taken, width, marks = self._taken, self.key_bytes, self._marks
        if marks[-1].form.tag_hash != _NO_TAG:
            most = max(1, most // 2)
        sizes = np.array(self.sizes[taken : taken + most], np.int64)
        ends: Ints = np.cumsum(sizes) + self.start
        count = len(sizes) if ends[-1] <= end else int(np.searchsorted(ends, end, "right"))
        if not count:
            return NO_KEYS, 0, self.start
        marks = marks[self._mark_of(taken) : self._mark_of(taken + count - 1) + 1]
        ids = self.ids[taken * width : (taken + count) * width]
        table = np.frombuffer(ids, np.uint8).reshape(count, width)
        firsts = np.array([each.first for each in marks], np.int64)
        which = np.searchsorted(firsts, np.arange(taken, taken + count), "right") - 1
        power = pow(31, width, 1 << 32)
        seeds = np.array([each.form.seed * power & 0xFFFFFFFF for each in marks], np.uint32)[which]
        hashes = index_hashes(seeds + table @ _powers(width))
        times: Ints = np.array([each.store_ms for each in marks], np.int64)[which]
        positions: Ints = ends[:count] - sizes[:count]
        tags = [each.form.tag_hash for each in marks]
        if max(tags) > _NO_TAG:
            both = np.stack((hashes, np.array(tags, np.int64)[which]), axis=1).ravel()
            is_key = both != _NO_TAG
            hashes, positions, times = both[is_key], positions.repeat(2)[is_key], times.repeat(2)[is_key]
        return KeyColumns(hashes, positions, times), count, int(ends[count - 1])

    def forget(self, records: int, position: int) -> None:
        """The index has these records now, up to ``position``."""
        self._taken = taken = self._taken + records
        self.start = position
        if taken >= LEAST_RECORDS:
            del self.ids[: taken * self.key_bytes], self.sizes[:taken]
            self._marks = [
                each._replace(first=each.first - taken) for each in self._marks[self._mark_of(taken) :]
            ]
            self._taken = 0

    def _mark_of(self, record: int) -> int:
        """The index of the mark that says what this record has."""
        return bisect.bisect_right(self._marks, record, key=_first) - 1


class AheadKeys:
    """Rows in the order of the log."""

    def __init__(self) -> None:
        self._rows: deque[KnownRow] = deque()
        self.last = KnownRow(-1, 0)
        """The row that is added to, if its records go on."""

    @property
    def records(self) -> int:
        """In all rows."""
        return sum(map(len, self._rows))

    def clear(self) -> None:
        self._rows.clear()
        self.last = KnownRow(-1, 0)

    def expect_none(self, start: int, end: int) -> None:
        """The records that will be stored in [start, end) have no keys."""
        row = self._row(start, 0)
        if row is not None:
            row.end = end

    def expect(
        self, start: int, end: int, form: KeyForm, store_ms: int, ids: bytes, sizes: Sequence[int]
    ) -> None:
        """The records that will be stored in [start, end) are of plain messages with these unique ids, one after
        another, and sizes."""
        row = self.last
        if (
            row.end != start
            or row.form is not form
            or row.store_ms != store_ms
            or len(row.sizes) >= MAX_RECORDS
        ):
            if self.records >= MAX_RECORDS:
                return
            found = self._row(start, form.key_bytes)
            if found is None:
                return
            row = self.last = found
            row.mark(form, store_ms)
        row.ids += ids
        row.sizes += sizes
        row.end = end

    def _row(self, start: int, key_bytes: int) -> KnownRow | None:
        """The row that goes on at ``start``, which may be a new one. None: there are too many."""
        rows = self._rows
        if rows:
            last = rows[-1]
            if last.end == start and last.key_bytes == key_bytes:
                return last
            if last.key_bytes and len(last) < LEAST_RECORDS:
                rows.pop()
        if len(rows) == MAX_ROWS:
            return None
        rows.append(KnownRow(start, key_bytes))
        return rows[-1]

    def ahead(self, position: int) -> KnownRow | None:
        """The first row that ends behind ``position``. Of one that is read nevertheless, nothing is left."""
        rows = self._rows
        while rows:
            row = rows[0]
            if row.end > position and (row.start >= position or not row.key_bytes):
                return row
            if rows.popleft() is self.last:
                self.last = KnownRow(-1, 0)
        return None


@functools.cache
def _powers(count: int) -> npt.NDArray[np.uint32]:
    """31^(count-1) to 31^0, modulo 2^32."""
    return np.array([pow(31, n, 1 << 32) for n in reversed(range(count))], np.uint32)
