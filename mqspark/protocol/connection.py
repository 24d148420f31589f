"""Turns the bytes of one connection into complete commands.

Limits apply before anything is allocated for a length that the peer claims (MAX_FRAME_BYTES,
MAX_HEADER_BYTES). The buffer grows only with received bytes, and a connection holds at most one incomplete
frame. A malformed frame raises ProtocolError. The connection is unusable afterwards and its owner closes it,
as RocketMQ does. Complete commands before the malformed frame in the same chunk are not delivered; their
sender sees the connection close.

If only the header of a request is too long, a server skips the request: it becomes an UnreadRequest, which is answered
with an error, and the connection stays usable.

Must not know about sockets, nor what commands mean.
"""

from __future__ import annotations

import re
import struct

from mqspark.errors import FrameTooLarge, ProtocolError
from mqspark.protocol.command import (
    JSON,
    PREFIX,
    PREFIX_BYTES,
    UNREAD_CODE,
    Command,
    UnreadRequest,
    decode_command,
    decode_header,
    note_unknown,
)
from mqspark.protocol.session import Session, Take

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Limit of a frame, length prefix included (com.rocketmq.remoting.frameMaxLength)."""

MAX_HEADER_BYTES = 256 * 1024
"""Limit chosen by this project; RocketMQ has none. It leaves room for a property string of the legal length, 32767
bytes, even if JSON escapes each byte with six."""

MAX_ANSWER_HEADER_BYTES = MAX_FRAME_BYTES
"""Limit for answers to own requests. The answer to a batch has the id of every message in its header."""

LARGE_BODY_BYTES = 64 * 1024
"""From this size on, a body is a view of the received bytes; below it, a copy is cheaper than a view."""

SLICE_BYTES = 8 * 1024
SLICE_COMMANDS = 512
"""``Connection(in_slices=True)`` checks after every ``SLICE_BYTES`` whether it has found ``SLICE_COMMANDS``,
and leaves the rest for the next call. A read of 256 KiB can hold 14,000 frames that consist of a code only."""

KEPT_BYTES = 2 * 1024
"""Bytes kept of each end of a skipped header: RocketMQ's clients write ``opaque`` last, others first."""

REFUSALS_A_STEP, MAX_STEPS = 8, 6
"""After so many questions in vain, one after another, twice as many reads go the long way before the next one
(``Connection.taken``), and so often at most."""

LOOK_EVERY = 64
"""After so many reads in a row that had no header of a known layout, one read of so many is looked at for one."""

_HTTP = int.from_bytes(b"HTTP")
"""The length of a frame that is an answer of an HTTP server."""
_BINARY_HEAD = struct.Struct(">hbhii")
_MEMBER = r'(?<!\\)"%s"\s*:\s*(-?\d{1,10})\s*[,}]'
_CODE, _OPAQUE, _FLAG = (re.compile((_MEMBER % name).encode()) for name in ("code", "opaque", "flag"))


class Connection:
    """The receiving half of one connection."""

    __slots__ = (
        "_filled",
        "_in_slices",
        "_max_header_bytes",
        "_needed",
        "_partial",
        "_passed",
        "_pieces",
        "_reads_over",
        "_refusals",
        "_rest",
        "_unasked",
        "_unknown_reads",
        "unparsed",
    )

    def __init__(
        self,
        *,
        max_header_bytes: int = MAX_HEADER_BYTES,
        in_slices: bool = False,
        reads_over: bool = False,
    ) -> None:
        """``reads_over``: a request whose header is too long becomes an UnreadRequest."""
        self._in_slices = in_slices
        self._reads_over = reads_over
        self._passed: _LongHeader | None = None
        """The frame that is being skipped."""
        self.unparsed = b""
        """Received bytes left for the next ``receive_data`` (``in_slices``), which may be called with b""."""
        self._max_header_bytes = max_header_bytes
        self._partial = bytearray()
        """An incomplete frame, or what it has behind ``_pieces``."""
        self._pieces: list[bytes | bytearray] = []
        """The beginning of an incomplete frame. Of two pieces one has at least LARGE_BODY_BYTES."""
        self._needed = PREFIX_BYTES
        self._rest: bytearray | None = None
        """A frame whose end is received in place (``rest``), complete up to ``_filled``."""
        self._filled = 0
        self._unasked = 0
        """Reads that go the long way before ``taken`` asks again."""
        self._refusals = 0
        """Questions in vain, one after another."""
        self._unknown_reads = 0
        """Reads in a row whose last header was of no known layout."""

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes that are kept of an incomplete frame."""
        if self._passed is not None:
            return self._passed.kept_bytes
        return self._filled if self._rest is not None else self._kept_bytes

    @property
    def _kept_bytes(self) -> int:
        return len(self._partial) + sum(map(len, self._pieces))

    def rest(self) -> memoryview | None:
        """The buffer for the missing part of a large frame that has begun; None when there is no such frame.
        The caller must read into it next and report the number of bytes to ``received_rest``. The whole frame
        is allocated, so a server must not use this: it is for peers from which large answers were requested."""
        if self._rest is None:
            have = self._kept_bytes
            if have < PREFIX_BYTES or self._needed - have < LARGE_BODY_BYTES:
                return None
            self._rest, self._filled = bytearray(self._needed), have
            self._rest[:have] = self._taken_out()
        return memoryview(self._rest)[self._filled :]

    def received_rest(self, count: int) -> list[Command]:
        """Report that ``count`` bytes were read into ``rest()``. Returns the command if it is complete now."""
        frame = self._rest
        if frame is None:
            raise RuntimeError("no frame is being received in place")
        self._filled += count
        if self._filled < len(frame):
            return []
        self._rest, self._needed = None, PREFIX_BYTES
        return [_command(frame)]

    def receive_data(self, data: bytes) -> list[Command]:
        """Every command that is complete now, in order. Raises ProtocolError or FrameTooLarge."""
        if self._rest is not None:
            raise RuntimeError("the rest of the current frame must be read into rest()")
        commands: list[Command] = []
        position = 0
        if self._passed is not None:
            position = self._read_over(self._passed, data, 0, commands)
        elif self._partial or self._pieces:
            position = self._complete_partial(data, commands)
            if not commands:
                return commands
        elif self.unparsed:
            data, self.unparsed = self.unparsed + data, b""
        length = stop = len(data)
        if stop > SLICE_BYTES and self._in_slices:
            stop = SLICE_BYTES
        max_total, max_header_bytes = MAX_FRAME_BYTES - 4, self._max_header_bytes
        unpack = PREFIX.unpack_from
        looks = self._unknown_reads < LOOK_EVERY or not self._unknown_reads % LOOK_EVERY
        while True:
            while stop - position >= PREFIX_BYTES:
                total, meta = unpack(data, position)
                header_length = meta & 0xFFFFFF
                if not header_length + 4 <= total <= max_total or header_length > max_header_bytes:
                    passed = self._check(total, meta)
                    if passed is not None:
                        position = self._read_over(passed, data, position + PREFIX_BYTES, commands)
                        continue
                end = position + 4 + total
                if end > length:
                    self._needed = 4 + total
                    break
                body_start = position + PREFIX_BYTES + header_length
                if end == body_start:
                    body: bytes | memoryview = b""
                elif end - body_start < LARGE_BODY_BYTES:
                    body = data[body_start:end]
                else:
                    body = memoryview(data)[body_start:end]
                position += PREFIX_BYTES
                if looks:
                    commands.append(decode_command(data, position, meta, body))
                else:
                    commands.append(decode_header(meta >> 24, data[position:body_start], body))
                position = end
            else:
                self._needed = PREFIX_BYTES
                if stop < length:
                    if len(commands) < SLICE_COMMANDS:
                        stop = min(max(position, stop) + SLICE_BYTES, length)
                        continue
                    self.unparsed, position = data[position:], length
            break
        if position < length:
            self._keep(data[position:] if position else data)
        if commands:
            if not looks:
                note_unknown(len(commands))
            self._unknown_reads = self._unknown_reads + 1 if commands[-1].layout is None else 0
        return commands

    def joined(self, data: bytes) -> bytes | None:
        """``data`` behind the beginning of its first frame, for a caller that takes frames off it and passes the rest
        to ``receive_data``. None if no frame is complete, or one is large or skipped: then pass ``data`` itself."""
        if self._passed is not None or self.unparsed:
            return None
        if not self._partial:
            return None if self._pieces else data
        if not self._needed - len(self._partial) <= len(data) or self._needed > LARGE_BODY_BYTES:
            return None
        data = b"".join((self._partial, data))
        self._partial, self._needed = bytearray(), PREFIX_BYTES
        return data

    def taken(self, take: Take, session: Session, data: bytes, at: int) -> int:
        """Ask ``take`` for the frames of ``data`` (``joined``) from ``at`` on, if it is time to. Returns where the
        first frame begins that is left."""
        if self._unasked:
            return at
        end = take(session, data, at)
        if end > at:
            self._refusals = 0
        return end

    def left(self, data: bytes, at: int) -> int:
        """The frame at ``at`` was left by ``taken``. Returns where the frames end that go the long way now: one; after
        several questions in vain all of the read, and ever more reads, so that ``take`` is hardly asked about a peer
        whose frames are others."""
        size = len(data)
        if self._unasked:
            self._unasked -= 1
            return size
        if size - at < PREFIX_BYTES:
            return size
        end: int = at + 4 + PREFIX.unpack_from(data, at)[0]
        if not at + PREFIX_BYTES <= end <= size:
            return size
        steps = self._refusals // REFUSALS_A_STEP
        if steps < MAX_STEPS:
            self._refusals += 1
        if not steps:
            return end
        self._unasked = (1 << steps) - 1
        return size

    def _complete_partial(self, data: bytes, commands: list[Command]) -> int:
        """Finish the frame begun in an earlier chunk. Returns where in ``data`` the next frame starts.

        Adds no command when the chunk is too short.
        """
        position = 0
        while True:
            missing = self._needed - self._kept_bytes
            if len(data) - position < missing:
                self._keep(data[position:] if position else data)
                return len(data)
            if self._pieces:
                commands.append(_command(self._taken_out(data[:missing])))
                self._needed = PREFIX_BYTES
                return missing
            partial = self._partial
            partial += data[position : position + missing]
            position += missing
            total, meta = PREFIX.unpack_from(partial, 0)
            if self._needed == PREFIX_BYTES:
                passed = self._check(total, meta)
                if passed is not None:
                    self._partial = bytearray()
                    return self._read_over(passed, data, position, commands)
                self._needed = 4 + total
                if self._needed > PREFIX_BYTES:
                    continue
            self._partial = bytearray()
            self._needed = PREFIX_BYTES
            commands.append(_command(partial))
            return position

    def _keep(self, data: bytes) -> None:
        """Large pieces stay as they came: a buffer that grew with each would move, and leave holes in the heap."""
        partial = self._partial
        if len(data) < LARGE_BODY_BYTES:
            partial += data
            if len(partial) < LARGE_BODY_BYTES:
                return
            self._pieces.append(partial)
        else:
            self._pieces += (partial, data) if partial else (data,)
        self._partial = bytearray()

    def _taken_out(self, end: bytes = b"") -> bytes:
        """What is kept, with ``end`` behind it. Nothing is kept any more."""
        kept = b"".join((*self._pieces, self._partial, end))
        self._pieces, self._partial = [], bytearray()
        return kept

    def _check(self, total: int, meta: int) -> _LongHeader | None:
        """Check a frame's lengths. Returns the frame to skip; None if it is to be read."""
        header_length = meta & 0xFFFFFF
        if 4 + total > MAX_FRAME_BYTES:
            if total == _HTTP:
                raise ProtocolError("the peer speaks HTTP: this is not a remoting port")
            raise FrameTooLarge("frame", 4 + total, MAX_FRAME_BYTES)
        if total < 4 or header_length > total - 4:
            raise ProtocolError(f"frame of {total} bytes with a header of {header_length}")
        if header_length <= self._max_header_bytes:
            return None
        if not self._reads_over:
            raise FrameTooLarge("header", header_length, self._max_header_bytes)
        return _LongHeader(meta >> 24, header_length, total - 4 - header_length, self._max_header_bytes)

    def _read_over(self, passed: _LongHeader, data: bytes, position: int, commands: list[Command]) -> int:
        """Returns where in ``data`` the next frame starts."""
        position = passed.take(data, position)
        self._passed = None if passed.is_over else passed
        if passed.is_over:
            commands.append(passed.request())
        return position


class _LongHeader:
    """A frame that is skipped. Both ends of its header are kept, and nothing of its body."""

    def __init__(self, kind: int, length: int, body_bytes: int, most_bytes: int) -> None:
        self._kind = kind
        self._length = length
        self._most_bytes = most_bytes
        self._header_left, self._body_left = length, body_bytes
        self._head, self._tail = bytearray(), bytearray()

    @property
    def kept_bytes(self) -> int:
        return PREFIX_BYTES + len(self._head) + len(self._tail)

    @property
    def is_over(self) -> bool:
        return not self._header_left and not self._body_left

    def take(self, data: bytes, position: int) -> int:
        """Returns where in ``data`` the frame ends, or the length of ``data``."""
        end = min(position + self._header_left, len(data))
        self._header_left -= end - position
        missing = KEPT_BYTES - len(self._head)
        self._head += data[position : min(position + missing, end)]
        self._tail = (self._tail + data[max(position, end - KEPT_BYTES) : end])[-KEPT_BYTES:]
        if self._header_left:
            return end
        position, end = end, min(end + self._body_left, len(data))
        self._body_left -= end - position
        return end

    def request(self) -> UnreadRequest:
        """The request to answer. Raises FrameTooLarge when its number cannot be found."""
        too_large = FrameTooLarge("header", self._length, self._most_bytes)
        if self._kind != JSON:
            code, _, _, opaque, flag = _BINARY_HEAD.unpack_from(self._head)
            return UnreadRequest(UNREAD_CODE, opaque, flag, asked=code, exceeded=str(too_large))
        # A quotation mark without a backslash is not inside a string, and the fields of requests have strings as
        # values. So a member with a number as value belongs to the header itself.
        code, opaque, flag = (self._member(pattern) for pattern in (_CODE, _OPAQUE, _FLAG))
        if code is None or opaque is None:
            raise too_large
        return UnreadRequest(UNREAD_CODE, opaque, flag or 0, asked=code, exceeded=str(too_large))

    def _member(self, pattern: re.Pattern[bytes]) -> int | None:
        found = pattern.search(self._head) or pattern.search(self._tail)
        value = None if found is None else int(found[1])
        return value if value is not None and -0x80000000 <= value <= 0x7FFFFFFF else None


def _command(frame: bytes | bytearray) -> Command:
    """The command of a whole frame whose lengths were checked."""
    _, meta = PREFIX.unpack_from(frame, 0)
    view = memoryview(frame)
    body_start = PREFIX_BYTES + (meta & 0xFFFFFF)
    body = view[body_start:]
    return decode_command(frame, PREFIX_BYTES, meta, body if len(body) >= LARGE_BODY_BYTES else bytes(body))
