"""Records that look alike: runs of topics and properties with the same names at the same places.

What a producer sends mostly differs in the values of its properties, not in their names, order and lengths. Such
records are rows of a table: names and separators are compared with those of the first of them, all rows at once, and
then a property is a column, so a hash of it is one step a byte for all rows. What is alike with too few others, has
bytes outside ASCII, or could be read in two ways is left for who reads records one by one.

Must not know what the properties mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Layout", "find_layouts"]

Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

MIN_ROWS = 96
"""Below, setting up the table costs more than it saves."""
_MAX_LAYOUTS = 8
_MAX_WIDTH = 512
_EACH_BYTE = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x80 * 0x0101010101010101)
_PLAIN = np.uint64(0x41 * 0x0101010101010101)


@dataclass(slots=True)
class Layout:
    """Rows whose topic and properties are alike."""

    rows: Ints
    """Which of the records that were asked about, ascending."""
    table: npt.NDArray[np.uint8]
    """A line for each: its topic, the two bytes of the properties' length, its properties."""
    topic_bytes: int
    values: dict[bytes, tuple[int, int]]
    """Property to the columns [from, to) of its value; ASCII, without control characters below 0x03."""

    def hashes(
        self, low: int, high: int, *, seed: npt.NDArray[np.uint32] | None = None
    ) -> npt.NDArray[np.uint32]:
        """Java's hash of columns [low, high) of every row; behind ``seed``, the hash of what stands before."""
        result = np.zeros(len(self.rows), np.uint32) if seed is None else seed
        for letters in np.ascontiguousarray(self.table[:, low:high].T):
            result = result * np.uint32(31) + letters
        return result


def find_layouts(view: memoryview, topics: Ints, properties: Ints, ends: Ints) -> tuple[list[Layout], Ints]:
    """The layouts among these records, and the rows that have none.

    ``topics``, ``properties``: where the topic and the properties of each begin in ``view``, the properties' two length
    bytes before them; ``ends``: where the properties end.
    """
    left = np.arange(len(topics))
    layouts: list[Layout] = []
    while len(left) >= MIN_ROWS and len(layouts) < _MAX_LAYOUTS:
        # The middle one: the first of a run may be the last of a kind.
        sample = int(left[len(left) // 2])
        found = _like(view, topics, properties, ends, left, sample)
        if found is None:
            break
        layouts.append(found)
        before = len(left)
        left = left[~np.isin(left, found.rows, assume_unique=True)] if len(found.rows) < before else left[:0]
    return layouts, left


def _like(
    view: memoryview, topics: Ints, properties: Ints, ends: Ints, left: Ints, sample: int
) -> Layout | None:
    start, head, end = int(topics[sample]), int(properties[sample]), int(ends[sample])
    width = end - start
    padded = -(-width // 8) * 8
    if width > _MAX_WIDTH:
        return None
    text = view[start:end].tobytes()
    topic_bytes = head - 2 - start
    values = _values(text, topic_bytes + 2)
    if values is None:
        return None
    alike = (ends[left] - topics[left] == width) & (properties[left] - topics[left] == head - start)
    rows = left[alike & (topics[left] + padded <= len(view))]
    if len(rows) < MIN_ROWS:
        return None
    is_free = np.zeros(padded, np.bool_)
    for low, high in [(0, topic_bytes), *values.values()]:
        is_free[low:high] = True
    is_padding = np.arange(padded) >= width
    free = _words(np.where(is_free, 0xFF, 0))
    letters = _PLAIN & ~free
    fixed = _words(np.where(is_free | is_padding, 0, 0xFF))
    model = _words(np.frombuffer(text.ljust(padded, b"\0"), np.uint8))
    every = np.ndarray((len(view) - padded + 1, padded), np.uint8, buffer=view, strides=(1, 1))
    table = every[topics[rows]]
    words = table.view(np.uint64)
    # Values may have any byte from 0x03 to 0x7F: what is not a value stands in as a letter.
    values_only = words & free
    values_only |= letters
    odd = values_only - _EACH_BYTE * np.uint64(3)
    odd |= values_only
    odd &= _HIGH_BITS
    np.bitwise_xor(words, model, out=values_only)
    values_only &= fixed
    odd |= values_only
    if odd.any():
        good = ~odd.any(axis=1)
        rows, table = rows[good], table[good]
    if len(rows) < MIN_ROWS:
        return None
    return Layout(rows, table, topic_bytes, values)


def _words(octets: npt.NDArray[np.integer]) -> _Words:
    return np.ascontiguousarray(octets, np.uint8).view(np.uint64)


def _values(text: bytes, at: int) -> dict[bytes, tuple[int, int]] | None:
    """Where the properties' values are; None for what is not plainly name 0x01 value 0x02 and so on, each name once."""
    values: dict[bytes, tuple[int, int]] = {}
    while at < len(text):
        name_end = text.find(b"\x01", at)
        value_end = text.find(b"\x02", at)
        if value_end < 0:
            value_end = len(text)
        name = text[at:name_end]
        if not at < name_end < value_end or name in values:
            return None
        values[name] = (name_end + 1, value_end)
        at = value_end + 1
    return values
