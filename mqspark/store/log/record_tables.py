"""Tables of similar records: runs of records whose topics and property names are the same, at the same
places.

Messages of one producer mostly differ in the values of their properties, not in names, order and lengths.
Such records form a table: names and separators are compared with those of a sample in all rows at once. A
property is then a column that is hashed one byte step at a time for all rows. Records that resemble too few
others, have bytes outside ASCII, or are ambiguous are left to a reader of single records.

Must not know what the properties mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.base.propertystring import ITEM_END, NAME_END

Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

MIN_ROWS = 96
"""Below this number, setting up the table costs more than it saves."""
_MAX_LAYOUTS = 8
_MAX_WIDTH = 512
_NAME_END, _ITEM_END = NAME_END.encode(), ITEM_END.encode()
_EACH_BYTE = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x80 * 0x0101010101010101)
_LETTER_BITS = np.uint64(0x40 * 0x0101010101010101)
_PLAIN = np.uint64(0x41 * 0x0101010101010101)
_BITS_32 = (1 << 32) - 1


@dataclass(slots=True)
class Layout:
    """Rows with the same topic and the same property layout."""

    rows: Ints
    """Indexes of the records, ascending."""
    table: npt.NDArray[np.uint8]
    """A row per record: its topic, the two bytes of the properties' length, its properties."""
    topic_bytes: int
    values: dict[bytes, tuple[int, int]]
    """Property → columns [from, to) of its value; ASCII, without control characters below 0x03."""
    sample: bytes
    """One of the rows."""
    varies: npt.NDArray[np.bool_]
    """For each column, whether rows may differ there from the sample."""

    def hashes(
        self, low: int, high: int, *, seed: npt.NDArray[np.uint32] | None = None
    ) -> npt.NDArray[np.uint32]:
        """Java's hash of columns [low, high) of every row, continued from ``seed``, the hash of the text
        before."""
        same = 0
        for letter, varies in zip(self.sample[low:high], self.varies[low:high].tolist(), strict=True):
            same = (same * 31 + (0 if varies else letter)) & _BITS_32
        if seed is None:
            result = np.full(len(self.rows), same, np.uint32)
        else:
            result = seed * np.uint32(pow(31, high - low, 1 << 32))
            result += np.uint32(same)
        for column in (np.flatnonzero(self.varies[low:high]) + low).tolist():
            power = np.uint32(pow(31, high - 1 - column, 1 << 32))
            result += np.multiply(self.table[:, column], power, dtype=np.uint32)
        return result


def find_layouts(view: memoryview, topics: Ints, properties: Ints, ends: Ints) -> tuple[list[Layout], Ints]:
    """The layouts among these records, and the rows without one.

    ``topics``, ``properties``: where the topic and the properties of each record begin in ``view``, with the
    two length bytes before the properties. ``ends``: where the properties end.
    """
    left = _Left(np.arange(len(topics)), topics, properties - topics, ends - topics)
    layouts: list[Layout] = []
    while len(left.rows) >= MIN_ROWS and len(layouts) < _MAX_LAYOUTS:
        found = _layout_of_sample(view, left)
        if found is None:
            break
        layouts.append(found)
        if len(found.rows) == len(left.rows):
            return layouts, left.rows[:0]
        left = left.only(~np.isin(left.rows, found.rows, assume_unique=True))
    return layouts, left.rows


class _Left(NamedTuple):
    """Records without a layout so far: their indexes, where their topics begin, and how far from there their
    properties begin and end."""

    rows: Ints
    topics: Ints
    heads: Ints
    widths: Ints

    def only(self, which: npt.NDArray[np.bool_]) -> _Left:
        return _Left(self.rows[which], self.topics[which], self.heads[which], self.widths[which])


def _layout_of_sample(view: memoryview, left: _Left) -> Layout | None:
    # The middle one: the first of a run may be the last of its kind.
    middle = len(left.rows) // 2
    start, head, width = int(left.topics[middle]), int(left.heads[middle]), int(left.widths[middle])
    padded = -(-width // 8) * 8
    if width > _MAX_WIDTH:
        return None
    text = view[start : start + width].tobytes()
    topic_bytes = head - 2
    values = _values(text, head)
    if values is None:
        return None
    alike = (left.widths == width) & (left.heads == head) & (left.topics <= len(view) - padded)
    if not alike.all():
        left = left.only(alike)
    rows = left.rows
    if len(rows) < MIN_ROWS:
        return None
    is_free = np.zeros(padded, np.bool_)
    for low, high in [(0, topic_bytes), *values.values()]:
        is_free[low:high] = True
    is_padding = np.arange(padded) >= width
    free = _words(np.where(is_free, 0xFF, 0))
    fixed = _words(np.where(is_free | is_padding, 0, 0xFF))
    every = np.ndarray((len(view) - padded + 1, padded), np.uint8, buffer=view, strides=(1, 1))
    table = every[left.topics]
    words = table.view(np.uint64)
    ones, zeros = _fold(np.bitwise_or, words), _fold(np.bitwise_and, words)
    changes = ones ^ zeros
    if (changes & fixed).any() or not _all_letters(words, ones, zeros, changes, free):
        model = _words(np.frombuffer(text.ljust(padded, b"\0"), np.uint8))
        odd = _differing_rows(words, model, free, fixed)
        if odd.any():
            rows, table = rows[~odd], table[~odd]
    if len(rows) < MIN_ROWS:
        return None
    return Layout(rows, table, topic_bytes, values, text, changes.view(np.uint8)[:width] != 0)


def _all_letters(words: _Words, ones: _Words, zeros: _Words, changes: _Words, free: _Words) -> bool:
    """Whether all bytes of values are from 0x20 to 0x7F, as in nearly all records. Checks only the columns
    that differ between rows."""
    wanted = free & _LETTER_BITS
    if (ones & free & _HIGH_BITS).any():
        return False
    same = zeros | zeros << np.uint64(1)
    columns = np.flatnonzero((changes != 0) & (same & wanted != wanted))
    if len(columns):
        letters = words[:, columns]
        letters |= letters << np.uint64(1)  # sets bit 6 where it or bit 5 was set
        same[columns] = _fold(np.bitwise_and, letters)
    return bool((same & wanted == wanted).all())


def _differing_rows(words: _Words, model: _Words, free: _Words, fixed: _Words) -> npt.NDArray[np.bool_]:
    """Mask of the rows that differ from the model outside values, or have value bytes outside 0x03 to 0x7F."""
    # Bytes outside values are replaced by a letter.
    values_only = words & free
    values_only |= _PLAIN & ~free
    odd = values_only - _EACH_BYTE * np.uint64(3)
    odd |= values_only
    odd &= _HIGH_BITS
    np.bitwise_xor(words, model, out=values_only)
    values_only &= fixed
    odd |= values_only
    return np.asarray(odd.any(axis=1), np.bool_)


def _fold(function: np.ufunc, words: _Words) -> _Words:
    """Combine all rows by AND or OR. Folding halves onto each other is faster than ``reduce`` over short
    rows."""
    while len(words) > 1:
        half = (len(words) + 1) // 2
        words = function(words[:half], words[-half:])
    last: _Words = words[0]
    return last


def _words(octets: npt.NDArray[np.integer]) -> _Words:
    return np.ascontiguousarray(octets, np.uint8).view(np.uint64)


def _values(text: bytes, at: int) -> dict[bytes, tuple[int, int]] | None:
    """The places of the property values; None unless the text is a plain sequence of name 0x01 value 0x02
    without a repeated name."""
    values: dict[bytes, tuple[int, int]] = {}
    while at < len(text):
        name_end = text.find(_NAME_END, at)
        value_end = text.find(_ITEM_END, at)
        if value_end < 0:
            value_end = len(text)
        name = text[at:name_end]
        if not at < name_end < value_end or name in values:
            return None
        values[name] = (name_end + 1, value_end)
        at = value_end + 1
    return values
