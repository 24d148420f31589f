"""Integer columns in a compact form: each takes as few bytes as its widest difference needs. Used between the
steps of a rebuild.

Positions and offsets mostly grow by a constant step; sizes, tags and times hardly change. Most columns of a
log so take a few bytes in all. A column is a head (first value, step, width) and for each row what is added
to it: the step alone, or 1, 2 or 4 unsigned bytes, or all eight bytes of the value. Little-endian.

Must not know what the columns mean.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_FRAME = struct.Struct("<II")
"""Number of rows; bytes after this head."""
_COLUMN = struct.Struct("<qqB")
"""First value, step, width."""
_RAW = 8
_WIDTHS = (1, 2, 4)


def pack(columns: Sequence[Ints]) -> bytes:
    """A frame of columns of equal length. Meant for at most some millions of rows."""
    parts = [part for column in columns for part in _packed(column)]
    return _FRAME.pack(len(columns[0]), sum(map(len, parts))) + b"".join(parts)


def _packed(column: Ints) -> tuple[bytes, bytes]:
    if not len(column):
        return _COLUMN.pack(0, 0, 0), b""
    first, last, rows = int(column[0]), int(column[-1]), len(column)
    step = (last - first) // (rows - 1) if rows > 1 else 0
    # The middle value rules out most columns without a constant step, which saves the full check.
    if int(column[rows // 2]) == first + step * (rows // 2) and (np.diff(column) == step).all():
        return _COLUMN.pack(first, step, 0), b""
    low = int(column.min())
    span = int(column.max()) - low
    for width in _WIDTHS:
        if span < 1 << 8 * width:
            return _COLUMN.pack(low, 0, width), (column - low).astype(f"<u{width}").tobytes()
    return _COLUMN.pack(0, 0, _RAW), column.astype("<i8").tobytes()


def read(file: BinaryIO) -> list[Ints]:
    """The columns of the frame at the file's position, which moves behind it. Raises EOFError at the end."""
    rows, size = _FRAME.unpack(_read_exactly(file, _FRAME.size))
    data = _read_exactly(file, size)
    columns = []
    at = 0
    while at < size:
        first, step, width = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        if width == 0:
            column = first + step * np.arange(rows) if step else np.full(rows, first)
        else:
            kind = "<i8" if width == _RAW else f"<u{width}"
            column = np.frombuffer(data, kind, rows, at).astype(np.int64)
            column += first
        columns.append(column)
        at += rows * width
    return columns


def skip(file: BinaryIO, rows: int) -> int:
    """Skip the frames that end within ``rows`` rows. Returns the number of rows left."""
    while rows > 0:
        found, size = _FRAME.unpack(_read_exactly(file, _FRAME.size))
        if found > rows:
            file.seek(-_FRAME.size, 1)
            break
        file.seek(size, 1)
        rows -= found
    return rows


def _read_exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError(f"{len(data)} of {size} bytes of a frame")
    return data
