"""Extracts index keys from stored records, for a run at once and without a loop over its records.

A record is found under its ``UNIQ_KEY``, under each word of its ``KEYS`` and, since RocketMQ 5.5, under its
``TAGS`` (IndexService.buildIndex). The index knows a key only by the Java hash of ``topic#key``, a tag by that of
``topic#T#tag``. Here the topics and properties of all records of a
run are concatenated as ``topic # 0x02 properties 0x02 topic # …``, and everything is arithmetic on that
array:

* A property is where its name stands between a 0x02 and a 0x01. Its value ends before the next 0x02.
* 31 is odd, so it has an inverse modulo 2^32, and one running sum of ``byte[i] · 31^-i`` gives the hash of
  every substring: hash of [a, b) = 31^(b-1) · (sum[b] - sum[a]).

Java hashes UTF-16 units, the log holds UTF-8: a text outside ASCII is hashed as units, and keys are hashed one by one
only in what is no UTF-8. Most records have one of few layouts (``mqspark.store.log.record_tables``) in which keys are
columns; these skip the search above.

Must not know files.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqspark.base.propertystring import ITEM_END, NAME_END, find_property, mark
from mqspark.message import KEYS, TAGS, TRANSACTION_MASK, TRANSACTION_ROLLBACK_TYPE, UNIQ_KEY, java_hash
from mqspark.record.record import Parts
from mqspark.store.log.record_tables import Layout
from mqspark.store.log.scan import Run

Ints = npt.NDArray[np.int64]

_NAME_END, _ITEM_END = ord(NAME_END), ord(ITEM_END)
_PAD = bytes(16)
"""Padding before the first topic, so that looking back for a name stays inside the array."""
_UNIQ_KEY = int.from_bytes(UNIQ_KEY.encode(), "big")
_KEYS = int.from_bytes(mark(KEYS)[:-1].encode(), "big")
_TAGS = int.from_bytes(mark(TAGS)[:-1].encode(), "big")
_TAG_PREFIX = "T#"
_LAST_FIVE_BYTES = (1 << 40) - 1

_MAX_TEXT_BYTES = 1 << 17
"""A slice with more text is split; no single record is as large."""
_ONE_BY_ONE = 128
"""Keys that are hashed one by one in a step."""
_MIN_POWERS_BITS = 12
_TAG_FACTOR, _TAG_SUMMAND = np.uint32(31 * 31), np.uint32(31 * ord("T") + ord("#"))
"""What the prefix of a tag does to the hash of what stands before it."""


@functools.cache
def _powers(bits: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """31^i and 31^-i modulo 2^32, for i below 2^bits. Few records need them, so there are none before."""
    factors = np.full(1 << bits, 31, dtype=np.uint32)
    factors[0] = 1
    powers = np.cumprod(factors, dtype=np.uint32)
    factors[1:] = pow(31, -1, 1 << 32)
    return powers, np.cumprod(factors, dtype=np.uint32)


class KeyColumns(NamedTuple):
    """One row per key, in the order in which RocketMQ would add them."""

    hashes: Ints
    positions: Ints
    """Physical offsets of the records."""
    timestamps_ms: Ints
    """Store times of the records."""

    def part(self, first: int, last: int) -> KeyColumns:
        return KeyColumns(*(column[first:last] for column in self))


NO_INTS: Ints = np.empty(0, dtype=np.int64)
NO_KEYS = KeyColumns(NO_INTS, NO_INTS, NO_INTS)


def tag_key(tag: str) -> str:
    """What the index has for a tag in the place of a key (MessageConst.INDEX_TAG_TYPE)."""
    return _TAG_PREFIX + tag


class Sought:
    """What a query looks for: messages of a topic with a key or, with ``is_tag``, a tag. The index finds records by the
    hash of ``indexed``, and ``is_in`` decides."""

    __slots__ = ("_text", "indexed", "is_tag", "topic")

    def __init__(self, topic: str, key: str, *, is_tag: bool = False) -> None:
        self.topic = topic
        self.is_tag = is_tag
        self.indexed = tag_key(key) if is_tag else key
        # No record has an unpaired surrogate.
        self._text = key.encode("utf-8", "surrogatepass")

    def is_in(self, record: Parts) -> bool:
        """Whether the record is of the topic and has the key or tag."""
        if record.topic != self.topic or not self._text:
            return False
        if self.is_tag:
            return find_property(record.properties, b"TAGS") == self._text
        return self.is_unique_key_of(record) or self._text in (
            find_property(record.properties, b"KEYS") or b""
        ).split(b" ")

    def is_unique_key_of(self, record: Parts) -> bool:
        return find_property(record.properties, b"UNIQ_KEY") == self._text


def index_hash(topic: str, key: str) -> int:
    """The hash of an index entry: the absolute value, and 0 for the number without one (IndexFile)."""
    value = abs(java_hash(f"{topic}#{key}"))
    return value if value < 1 << 31 else 0


def index_hashes(hashes: npt.NDArray[np.uint32]) -> Ints:
    """``index_hash`` of what Java's hashes are modulo 2^32."""
    found: Ints = np.abs(hashes.view(np.int32).astype(np.int64))
    found[found == 1 << 31] = 0
    return found


def run_keys(run: Run, *, tags: bool = True) -> KeyColumns:
    """The keys of the records of a run. Without ``tags``: as an index of RocketMQ before 5.5 has them."""
    *_, keys = key_steps(run, tags=tags)
    return keys


def key_steps(run: Run, *, tags: bool = True) -> Iterator[KeyColumns]:
    """``run_keys`` step by step: none of them takes long. The last one yields the keys, those before it none."""
    layouts, rest = run.layouts()
    yield NO_KEYS
    texts = _Texts(run.topic_starts, run.property_starts, run.property_ends)
    parts: list[_Found] = []
    for _ in _find_parts(run.view, texts, layouts, rest, parts, tags=tags):
        yield NO_KEYS
    rows, hashes = _joined(parts)
    is_indexed = run.sys_flags & TRANSACTION_MASK != TRANSACTION_ROLLBACK_TYPE
    if not is_indexed.all():
        kept = is_indexed[rows]
        rows, hashes = rows[kept], hashes[kept]
    yield KeyColumns(hashes, run.positions[rows], run.store_timestamps_ms[rows])


class _Texts(NamedTuple):
    """Where topics and properties begin, and where the properties end."""

    topics: Ints
    properties: Ints
    ends: Ints


def _find_parts(
    view: memoryview, texts: _Texts, layouts: Sequence[Layout], rest: Ints, parts: list[_Found], *, tags: bool
) -> Iterator[None]:
    """Step by step, append what is found to ``parts``."""
    for layout in layouts:
        found, odd = _layout_keys(layout, tags=tags)
        rest = np.sort(np.concatenate((rest, odd))) if len(odd) else rest
        parts.append(found)
        yield
    ends = np.cumsum(texts.ends[rest] - texts.topics[rest] + 1)
    low, base = 0, 0
    while low < len(rest):
        high = max(low + 1, int(np.searchsorted(ends, base + _MAX_TEXT_BYTES - len(_PAD) - 1, "right")))
        found, corrections = _text_keys(view, texts, rest[low:high], tags=tags)
        parts.append(found)
        yield
        yield from corrections
        low, base = high, int(ends[high - 1])


def _joined(parts: list[_Found]) -> _Found:
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    return _Found(rows[order], np.concatenate([part.hashes for part in parts])[order])


class _Found(NamedTuple):
    """One row per key, ascending by record; the keys of a record in their order."""

    rows: Ints
    hashes: Ints


def _layout_keys(layout: Layout, *, tags: bool) -> tuple[_Found, Ints]:
    """The keys of a layout, and the rows whose KEYS have their spaces at other places than the first row."""
    spans = []
    odd = NO_INTS
    low, high = layout.values.get(b"UNIQ_KEY", (0, 0))
    if high > low:
        spans.append((low, high))
    low, high = layout.values.get(b"KEYS", (0, 0))
    if high > low:
        is_space = layout.table[:, low:high] == 0x20
        if is_space.any():
            alike = (is_space == is_space[0]).all(axis=1)
            if not alike.all():
                odd = layout.rows[~alike]
                layout = replace(layout, rows=layout.rows[alike], table=layout.table[alike])
        stops = [low - 1, *(np.flatnonzero(is_space[0]) + low).tolist(), high]
        spans += [(before + 1, stop) for before, stop in itertools.pairwise(stops) if stop > before + 1]
    low, high = layout.values.get(b"TAGS", (0, 0)) if tags else (0, 0)
    keys = len(spans)
    if high > low:
        spans.append((low, high))
    topic = layout.hashes(0, layout.topic_bytes) * np.uint32(31) + np.uint32(0x23)
    hashes = np.empty((len(layout.rows), len(spans)), np.int64)
    for index, (low, high) in enumerate(spans):
        seed = topic if index < keys else topic * _TAG_FACTOR + _TAG_SUMMAND
        hashes[:, index] = index_hashes(layout.hashes(low, high, seed=seed))
    return _Found(np.repeat(layout.rows, len(spans)), hashes.ravel()), odd


def _text_keys(view: memoryview, texts: _Texts, rows: Ints, *, tags: bool) -> tuple[_Found, Iterable[None]]:
    """The keys, and what corrects their hashes step by step."""
    starts, ends = texts.topics[rows], texts.ends[rows]
    slices = [_PAD]
    slices += [view[low:high] for low, high in zip(starts.tolist(), ends.tolist(), strict=True)]  # type: ignore[misc]
    buffer = bytearray((_ITEM_END,)).join(slices)
    buffer.append(_ITEM_END)
    text = np.frombuffer(buffer, dtype=np.uint8)
    lengths = ends - starts + 1
    topics = np.cumsum(lengths) - lengths + len(_PAD) + 1
    # The properties' length lies between topic and properties; here the '#' of the key and a 0x02 take its
    # place.
    properties = topics + texts.properties[rows] - starts
    text[properties - 2] = 0x23
    text[properties - 1] = _ITEM_END

    row, low, high, is_tag = _find_keys(text, topics, tags=tags)
    hashes, corrections = _hash(text, _Spans(topics[row], properties[row] - 1, low, high), is_tag)
    return _Found(rows[row], hashes), corrections


def _find_keys(
    text: npt.NDArray[np.uint8], topics: Ints, *, tags: bool
) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]:
    """Row, start and end of every key, and whether it is the tag, by row; the unique key of a row before its other
    keys, the tag after them."""
    names = np.flatnonzero(text == _NAME_END)
    stops = np.flatnonzero(text == _ITEM_END)
    before = np.ndarray((len(text) - 7,), dtype=">u8", buffer=text, strides=(1,))[names - 8].astype(np.uint64)
    unique_names = names[before == _UNIQ_KEY]
    unique_names = unique_names[text[unique_names - 9] == _ITEM_END]
    unique = _values(unique_names, stops, topics)
    row, low, high = _values(names[before & _LAST_FIVE_BYTES == _KEYS], stops, topics)
    spaces = np.flatnonzero(text == 0x20)
    if len(spaces) and len(row):
        first, last = np.searchsorted(spaces, low), np.searchsorted(spaces, high)
        inside = last - first
        if inside.any():
            row = np.repeat(row, inside + 1)
            within = np.zeros(len(spaces) + 1, dtype=np.int64)
            np.add.at(within, first, 1)
            np.add.at(within, last, -1)
            spaces = spaces[np.cumsum(within)[:-1] > 0]
            # The words are disjoint and in order, so sorted starts and ends pair up.
            low = np.sort(np.concatenate((low, spaces + 1)))
            high = np.sort(np.concatenate((high, spaces)))
            words = high > low
            row, low, high = row[words], low[words], high[words]
    tagged = _values(names[before & _LAST_FIVE_BYTES == _TAGS], stops, topics) if tags else (NO_INTS,) * 3
    parts = unique, (row, low, high), tagged
    kinds = np.repeat(np.arange(3), [len(part[0]) for part in parts])
    all_rows, lows, highs = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(all_rows * 3 + kinds, kind="stable")
    return all_rows[order], lows[order], highs[order], kinds[order] == 2


def _values(names: Ints, stops: Ints, topics: Ints) -> tuple[Ints, Ints, Ints]:
    """Row, start and end of the values after these 0x01. Of several values in a row the last counts; empty
    ones do not count."""
    low = names + 1
    high = stops[np.searchsorted(stops, low)]
    if (high == low).any():
        low, high = low[high > low], high[high > low]
    row = np.searchsorted(topics, low, "right") - 1
    if len(row) > 1 and (row[1:] == row[:-1]).any():
        last = np.append(row[1:] != row[:-1], True)
        row, low, high = row[last], low[last], high[last]
    return row, low, high


class _Spans(NamedTuple):
    """Where, for each key, its topic with the # behind it and itself begin and end."""

    topic_low: Ints
    topic_high: Ints
    low: Ints
    high: Ints


def _hash(
    text: npt.NDArray[np.uint8], spans: _Spans, is_tag: npt.NDArray[np.bool_]
) -> tuple[Ints, Iterable[None]]:
    """Hash of ``topic#`` followed by the key, or by ``T#`` and the tag; and what corrects it step by step."""
    if not (text >= 0x80).any():
        return _hash_units(text, spans, is_tag), ()
    try:
        units = np.frombuffer(text.tobytes().decode().encode("utf-16-le"), "<u2")
    except UnicodeDecodeError:
        hashes = _hash_units(text, spans, is_tag)
        return hashes, _correct_one_by_one(hashes, text, spans, is_tag)
    # A letter of four bytes is two units, each other one is one.
    counts = ((text & 0xC0) != 0x80).astype(np.int64) + (text >= 0xF0)
    before = np.cumsum(counts) - counts
    return _hash_units(units, _Spans(*(before[places] for places in spans)), is_tag), ()


def _hash_units(
    units: npt.NDArray[np.unsignedinteger[Any]], spans: _Spans, is_tag: npt.NDArray[np.bool_]
) -> Ints:
    topic_low, topic_high, low, high = spans
    sums = np.zeros(len(units) + 1, dtype=np.uint32)
    powers, inverse_powers = _powers(max((len(units) - 1).bit_length(), _MIN_POWERS_BITS))
    np.cumsum(units * inverse_powers[: len(units)], dtype=np.uint32, out=sums[1:])
    topic_hash = powers[topic_high - 1] * (sums[topic_high] - sums[topic_low])
    topic_hash[is_tag] = topic_hash[is_tag] * _TAG_FACTOR + _TAG_SUMMAND
    key_hash = powers[high - 1] * (sums[high] - sums[low])
    return index_hashes(topic_hash * powers[high - low] + key_hash)


def _correct_one_by_one(
    hashes: Ints, text: npt.NDArray[np.uint8], spans: _Spans, is_tag: npt.NDArray[np.bool_]
) -> Iterator[None]:
    """Hash again what is not ASCII, in a text that is no UTF-8."""
    beyond_ascii = np.flatnonzero(text >= 0x80)

    def has_any(starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
        differ: npt.NDArray[np.bool_] = np.searchsorted(beyond_ascii, starts) != np.searchsorted(
            beyond_ascii, ends
        )
        return differ

    topic_low, topic_high, low, high = spans
    odd = np.flatnonzero(has_any(low, high) | has_any(topic_low, topic_high))
    for done, index in enumerate(odd.tolist(), 1):
        topic = text[topic_low[index] : topic_high[index] - 1].tobytes().decode("utf-8", "replace")
        key = text[low[index] : high[index]].tobytes().decode("utf-8", "replace")
        hashes[index] = index_hash(topic, tag_key(key) if is_tag[index] else key)
        if done % _ONE_BY_ONE == 0:
            yield
