"""Where the decoder is in each body of a batch, and what it reads there.

A step reads the same field of many bodies at once, with NumPy. ``rows`` are numbers of bodies, ascending. A body that
turns out to be wrong is noted with the reason and stands at its end from then on, so that later steps read nothing of
it. Must not know schemas.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Rows = npt.NDArray[np.int64]

_SPARE_BYTES = 16
"""Behind the last body, so that a number of fixed size can be read anywhere."""
_VARINT_BYTES = 10
ENDS_EARLY = "the body ends early"


class AvroCursor:
    def __init__(self, bodies: pa.BinaryArray) -> None:
        """``bodies`` has no nulls."""
        _, offsets, data = bodies.buffers()
        ends = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].astype(
            np.int64
        )
        first = int(ends[0])
        size = int(ends[-1]) - first
        self._data = np.zeros(size + _SPARE_BYTES, np.uint8)
        if size:
            self._data[:size] = np.frombuffer(data, np.uint8)[first : first + size]
        self._at: Rows = ends[:-1] - first
        self._end: Rows = ends[1:] - first
        self._reason = np.zeros(len(bodies), np.int32)
        self._texts = [""]
        self._slow = np.zeros(len(bodies), np.bool_)

    @property
    def slow(self) -> npt.NDArray[np.bool_]:
        """The bodies to decode one by one."""
        return self._slow

    def reasons(self) -> list[str | None]:
        """For each body why it is wrong, None if it is not."""
        return [self._texts[each] or None for each in self._reason.tolist()]

    def is_over(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which of the bodies are not read any more."""
        found: npt.NDArray[np.bool_] = (self._reason[rows] != 0) | self._slow[rows]
        return found

    def refuse(self, rows: Rows, reason: str) -> None:
        """Notes that these bodies are wrong; the first reason stays."""
        if not rows.size:
            return
        self._at[rows] = self._end[rows]
        fresh = rows[~self.is_over(rows)]
        if fresh.size:
            self._reason[fresh] = len(self._texts)
            self._texts.append(reason)

    def leave(self, rows: Rows) -> None:
        """Notes that these bodies are decoded one by one."""
        fresh = rows[~self.is_over(rows)]
        self._at[fresh] = self._end[fresh]
        self._slow[fresh] = True

    def refuse_rest(self) -> None:
        """Refuses the bodies that have bytes left."""
        self.refuse(np.flatnonzero(self._at < self._end), "the body goes on behind its last field")

    def left(self, rows: Rows) -> Rows:
        """How many bytes are left of each body."""
        return self._end[rows] - self._at[rows]

    def numbers(self, rows: Rows, path: str) -> npt.NDArray[np.int64]:
        """An int or a long of each body."""
        at, end = self._at[rows], self._end[rows]
        early = at >= end
        byte = self._data[at]
        value = (byte & 0x7F).astype(np.uint64)
        more = np.flatnonzero((byte >= 0x80) & ~early)
        at += 1
        shift = 7
        too_long = more[:0]
        while more.size:
            if shift == 7 * _VARINT_BYTES:
                too_long = more
                break
            here = at[more]
            byte = self._data[here]
            cut = here >= end[more]
            if shift == 63:
                cut |= byte > 1  # a long has 64 bits
            early[more[cut]] = True
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more = more[(byte >= 0x80) & ~cut]
            shift += 7
        self._at[rows] = at
        early[too_long] = True
        if early.any():
            self.refuse(rows[early], f"{path}: a number that is cut short or too long")
            value[early] = 0
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)

    def fixed(self, rows: Rows, size: int, path: str) -> npt.NDArray[np.uint8]:
        """The next ``size`` bytes (up to 16) of each body, a row each; zeros where there are fewer."""
        early = self.left(rows) < size
        if early.any():
            self.refuse(rows[early], f"{path}: {ENDS_EARLY}")
        at = self._at[rows]
        found: npt.NDArray[np.uint8] = self._data[at[:, None] + np.arange(size)]
        if early.any():
            found[early] = 0
        self._at[rows] = np.where(early, at, at + size)
        return found

    def lengths(self, rows: Rows, path: str) -> Rows:
        """The length in front of a text or bytes."""
        found = self.numbers(rows, path)
        wrong = (found < 0) | (found > self.left(rows))
        if wrong.any():
            self.refuse(rows[wrong], f"{path}: {ENDS_EARLY}")
            found[wrong] = 0
        return found

    def skip(self, rows: Rows, lengths: Rows) -> None:
        self._at[rows] += lengths

    def check_room(self, rows: Rows, lengths: Rows, path: str) -> Rows:
        """The lengths, with 0 for bodies that are shorter, which are refused."""
        wrong = lengths > self.left(rows)
        if wrong.any():
            self.refuse(rows[wrong], f"{path}: {ENDS_EARLY}")
            lengths = np.where(wrong, 0, lengths)
        return lengths

    def binary(self, rows: Rows, lengths: Rows) -> pa.BinaryArray:
        """The next bytes of each body, ``lengths`` that are known to be there. One array has the wanted bytes and
        those between them in turns, and every second one is taken."""
        if not rows.size:
            return pa.array([], pa.binary())
        starts = self._at[rows]
        ends = starts + lengths
        turns = np.empty(2 * rows.size + 1, np.int32)
        turns[0:-1:2] = starts
        turns[1::2] = ends
        turns[-1] = ends[-1]
        both = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * rows.size, [None, pa.py_buffer(turns), pa.py_buffer(self._data)]
        )
        self._at[rows] = ends
        return both.take(pa.array(np.arange(0, 2 * rows.size, 2)))

    def big_endian(self, rows: Rows, lengths: Rows) -> npt.NDArray[np.uint8]:
        """The next bytes of each body, up to 16, as a signed number of 16 bytes, little end first."""
        at = self._at[rows]
        last = at + lengths - 1
        place = np.arange(16)
        inside = place < lengths[:, None]
        found = self._data[np.where(inside, last[:, None] - place, 0)]
        sign = np.where((lengths > 0) & (self._data[at] >= 0x80), np.uint8(0xFF), np.uint8(0))
        found = np.where(inside, found, sign[:, None])
        self._at[rows] = at + lengths
        return np.ascontiguousarray(found)
