"""The offsets that a group has of the queues of one topic, in little memory.

Queues are numbered from 0, and a broker may have millions of offsets. So those of queues 0 to n are in an array, eight
bytes each, and only what comes with gaps is in a dict. An offset fits 64 bits, as on the wire.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from operator import gt
from typing import TypeVar

import msgspec

from mqspark.base.config import INT64_MAX
from mqspark.errors import ProtocolError
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.admin_bodies import (
    ConsumerOffsetSerializeWrapper,
    LmqConsumerOffsetSerializeWrapper,
)
from mqspark.protocol.bodies.body import Body, decode_table
from mqspark.protocol.bodies.longtables import copied
from mqspark.protocol.bodies.topic_bodies import DataVersion
from mqspark.protocol.headers.header import I64
from mqspark.protocol.slices import Work
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID

_K = TypeVar("_K")

_ARRAY_BYTES = 168
"""An object and an array, with the room that the array keeps to grow."""
_DENSE_BYTES = 9
MAX_QUEUE_BYTES = 128
"""An offset in a dict takes so much."""


class OffsetRow:
    """Queue id → offset."""

    __slots__ = ("_first", "_others")

    def __init__(self, offsets: Mapping[int, int] | None = None) -> None:
        self._first = array("q")
        """The offsets of the queues from 0 on, without a gap."""
        self._others: dict[int, int] | None = None
        if offsets:
            self.update(offsets)

    def __len__(self) -> int:
        return len(self._first) + len(self._others or ())

    def __contains__(self, queue_id: int) -> bool:
        return 0 <= queue_id < len(self._first) or (self._others is not None and queue_id in self._others)

    def get(self, queue_id: int, default: int) -> int:
        if 0 <= queue_id < len(self._first):
            return self._first[queue_id]
        return default if self._others is None else self._others.get(queue_id, default)

    def put(self, queue_id: int, offset: int) -> int:
        """Set an offset. Returns how many bytes more that takes."""
        row = self._first
        if 0 <= queue_id < len(row):
            row[queue_id] = offset
            return 0
        before_bytes = self.size_bytes
        others = self._others or {}
        others[queue_id] = offset
        while (number := len(row)) in others:
            row.append(others[number])
            del others[number]  # only now: another thread may look for it, here first
        self._others = others or None
        return self.size_bytes - before_bytes

    def pop(self, queue_id: int) -> int | None:
        """Remove and return an offset. Those of the queues behind it leave the array, each once."""
        others, row = self._others or {}, self._first
        if 0 <= queue_id < len(row):
            offset: int | None = row[queue_id]
            self._others = (others | dict(enumerate(row[queue_id + 1 :], queue_id + 1))) or None
            del row[queue_id:]  # only now: another thread may look for one of them
        else:
            offset = others.pop(queue_id, None)
            self._others = others or None
        return offset

    def update(self, offsets: Mapping[int, int]) -> None:
        if not self and list(offsets) == list(range(len(offsets))):
            self._first = array("q", offsets.values())
            return
        for queue_id, offset in offsets.items():
            self.put(queue_id, offset)

    def items(self) -> Iterator[tuple[int, int]]:
        return chain(enumerate(self._first), (self._others or {}).items())

    def as_dict(self) -> dict[int, int]:
        """In any thread: each entry is an offset that the queue had from now on."""
        others = dict(self._others or ())  # first: what moves meanwhile is in the array, then
        first = fastjson.OrderedNumbers(enumerate(self._first))
        return others | first if others else first

    def copy(self) -> OffsetRow:
        made = OffsetRow()
        made._first = self._first[:]
        made._others = self._others and self._others.copy()
        return made

    def are_below(self, ends_of: Callable[[int], list[int]]) -> bool:
        """Whether there are no others than those of the first queues, each from 0 to the end of its queue. ``ends_of``:
        the ends of so many queues."""
        row = self._first
        return self._others is None and not any(map(gt, row, ends_of(len(row)))) and min(row, default=0) >= 0

    @property
    def size_bytes(self) -> int:
        return _ARRAY_BYTES + _DENSE_BYTES * len(self._first) + MAX_QUEUE_BYTES * len(self._others or ())


class _OffsetFile(Body):
    """``LmqConsumerOffsetSerializeWrapper``, with the offsets of each topic and group as text."""

    offset_table: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    lmq_offset_table: dict[str, I64] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None


OFFSET_SLICE_BYTES = 32 * 1024
"""So much text of a master's offsets is decoded in one turn: some two thousand offsets."""

Rows = dict[str, dict[int, int]]
"""``topic@group`` → queue id → offset."""

_TABLE = b'"offsetTable":{'
_ROW_END = b'},"'
_TABLE_END = b"}}"
_decode_strict = msgspec.json.Decoder(dict[str, dict[int, I64]]).decode


def _decode_some(text: bytes) -> Rows:
    try:
        return _decode_strict(text)
    except msgspec.MsgspecError:  # RocketMQ writes the numbers of queues bare
        return _decode_strict(fastjson.with_quoted_numbers(text))


def offsets_in_slices(body: bytes | memoryview) -> Work[tuple[deque[Rows], DataVersion | None]]:
    """A ``ConsumerOffsetSerializeWrapper`` with its rows in parts, each decoded in one slice. Text that is not written
    as brokers write it is decoded at once. Raises ProtocolError."""
    text = yield from copied(body)
    low = text.find(_TABLE) + len(_TABLE)
    if low >= len(_TABLE) and not text.startswith(b"}", low):
        begin, parts = low, deque[Rows]()
        try:
            while (high := text.find(_ROW_END, low + OFFSET_SLICE_BYTES)) >= 0:
                parts.append(_decode_some(b"{%b}}" % text[low:high]))
                low = high + 2
                yield
            end = text.index(_TABLE_END, low)
            parts.append(_decode_some(b"{%b}}" % text[low:end]))
            rest = decode_table(ConsumerOffsetSerializeWrapper, text[:begin] + text[end + 1 :])
        except (msgspec.MsgspecError, ValueError, RecursionError, ProtocolError):
            pass  # a row is not where it seemed to be
        else:
            return parts, rest.data_version
    wrapper = decode_table(ConsumerOffsetSerializeWrapper, text)
    return deque([wrapper.offset_table]), wrapper.data_version


_decode_rows = msgspec.json.Decoder(_OffsetFile).decode
_decode_row = msgspec.json.Decoder(dict[int, I64]).decode


def decode_offsets(text: bytes) -> tuple[dict[str, OffsetRow], DataVersion | None]:
    """The content of ``consumerOffset.json`` or ``lmqConsumerOffset.json``: ``topic@group`` → offsets. A file as
    brokers write it is read row by row, and never in memory as objects. Of a number that no offset can be, the nearest
    is taken, which a queue's bounds then show to be impossible. Raises ProtocolError."""
    try:
        found = _decode_rows(fastjson.with_quoted_numbers(text))
        rows = {key: OffsetRow(_decode_row(row)) for key, row in found.offset_table.items()}
        light, version = found.lmq_offset_table, found.data_version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        wrapper = decode_table(LmqConsumerOffsetSerializeWrapper, text)
        rows = {key: OffsetRow(_nearest(queues)) for key, queues in wrapper.offset_table.items()}
        light, version = _nearest(wrapper.lmq_offset_table), wrapper.data_version
    for key, offset in light.items():
        rows[key] = OffsetRow({LMQ_QUEUE_ID: offset})
    return rows, version


def _nearest(offsets: Mapping[_K, int]) -> dict[_K, int]:
    return {key: min(max(offset, -1 - INT64_MAX), INT64_MAX) for key, offset in offsets.items()}
