"""One connection of HTTP/2, on the server's side: bytes in, events out; answers in, bytes out.

    received(bytes, now) -> [event, ...]        all frames that are complete
    begin_answer, send, end_answer              what a stream's caller gets
    to_send() -> [bytes, ...]                   since the last call

Faults (RFC 9113, 5.4): what one stream does wrong resets that stream. What leaves the connection without a meaning
raises Http2Error; then ``to_send`` ends with GOAWAY, and the owner closes the connection. Complete frames before the
wrong one in the same read are not reported.

Bounds: a frame has MAX_FRAME_BYTES; those of header blocks are in ``requestheads``. Frames that serve nothing have an
``allowance``. What the peer sends is bounded by windows: the owner opens a stream's by ``used``; the
connection's is opened once a read. What the peer does not take waits in the streams; the owner asks ``waiting_bytes``
and stops serving it.

No header table is kept for answers: their blocks are constants.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterator

from mqspark_server.net.http2.allowance import FRAME_COST, RESET_COST, Allowance
from mqspark_server.net.http2.http2frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    LAST_STREAM,
    MAX_FRAME_BYTES,
    MOST_FRAME_BYTES,
    MOST_WINDOW_BYTES,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ENABLE_PUSH,
    SETTINGS_INITIAL_WINDOW_SIZE,
    SETTINGS_MAX_CONCURRENT_STREAMS,
    SETTINGS_MAX_FRAME_SIZE,
    SETTINGS_MAX_HEADER_LIST_SIZE,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Http2Code,
    Http2Error,
    frame,
    frame_head,
)
from mqspark_server.net.http2.http2streams import (
    DataCame,
    Event,
    Http2Stream,
    Malformed,
    PingAnswered,
    RequestBegun,
    RequestEnded,
    WindowOpened,
)
from mqspark_server.net.http2.requestheads import MAX_LIST_BYTES, RequestHeads

STREAM_WINDOW_BYTES = 1 << 20
CONNECTION_WINDOW_BYTES = 4 << 20
MAX_LATE = 1_024
"""Streams reset here of which the peer may not know yet."""
SMALL_INCREMENT = 1_024
"""A window that is opened by less counts as a frame that serves nothing."""
WAITING_STREAM_BYTES = 1_300
"""Memory of a stream whose answer waits, besides that answer: measured."""
SMALL_DATA_BYTES = 64
"""So do data with fewer bytes that are not the last."""
SETTINGS_A_COST = 8
STREAMS_A_COST = 16
"""So many settings, or streams whose windows change, cost as much as a frame."""
_SETTING = struct.Struct(">HI")
_U32 = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")
_PRIORITY_BYTES = 5
_PING_BYTES = 8


class Http2Connection:
    """``max_streams``: open at one time. ``unread``: fields of requests whose values nobody reads."""

    def __init__(self, max_streams: int, unread: Collection[str] = ()) -> None:
        self._max_streams = max_streams
        self._rest = b""
        """The beginning of an incomplete frame, or of the preface."""
        self.has_begun = False
        """Whether the preface and the first settings have come."""
        self._preface_came = False
        self._heads = RequestHeads(unread)
        self._streams: dict[int, Http2Stream] = {}
        self._last = 0
        """The newest stream of the peer."""
        self._skipped = 0
        """The newest stream that the peer has never opened, and cannot any more."""
        self._late: dict[int, None] = {}
        """Streams that were reset here before the peer ended them: what comes for them is dropped."""
        self._refused_above = LAST_STREAM
        self._receive_window = CONNECTION_WINDOW_BYTES
        self._send_window = DEFAULT_WINDOW_BYTES
        self._peer_stream_window = DEFAULT_WINDOW_BYTES
        self._peer_frame_bytes = MAX_FRAME_BYTES
        self._ready: dict[Http2Stream, None] = {}
        """Streams that wait only for the connection's window."""
        self._allowance = Allowance()
        self._events: list[Event] = []
        self._begun: dict[int, RequestBegun] = {}
        """Requests without data that this read has begun."""
        self._now = 0.0
        self.unsent_bytes = 0
        """What waits for the peer to open windows."""
        self._waiting_streams = 0
        """The streams in which it does."""
        settings = (
            (SETTINGS_MAX_CONCURRENT_STREAMS, max_streams),
            (SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES),
            (SETTINGS_MAX_HEADER_LIST_SIZE, MAX_LIST_BYTES),
        )
        window = _U32.pack(CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
        self._out = [
            frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in settings))
            + frame(WINDOW_UPDATE, 0, 0, window)
        ]

    def __len__(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    def __iter__(self) -> Iterator[Http2Stream]:
        """A snapshot: streams may end during the iteration."""
        return iter(list(self._streams.values()))

    @property
    def waiting_bytes(self) -> int:
        """Memory of what waits for the peer to open windows: few bytes may be in thousands of streams."""
        return self.unsent_bytes + WAITING_STREAM_BYTES * self._waiting_streams

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete frame or header block."""
        return len(self._rest) + self._heads.buffered_bytes

    # --- bytes in -------------------------------------------------------------------------------------------------

    def received(self, data: bytes, now: float) -> list[Event]:
        """What has happened. Raises Http2Error."""
        self._now = now
        if self._rest:
            data = self._rest + data
        try:
            at = 0 if self._preface_came else self._preface(data)
            self._rest = data[self._frames(data, at) :]
        except Http2Error as error:
            self._refused_above = self._last
            self._end(error.code)
            raise
        consumed = CONNECTION_WINDOW_BYTES - self._receive_window
        if consumed >= CONNECTION_WINDOW_BYTES // 2:
            self._receive_window += consumed
            self._out.append(frame(WINDOW_UPDATE, 0, 0, _U32.pack(consumed)))
        if self._begun:
            self._begun.clear()
        events, self._events = self._events, []
        return events

    def _preface(self, data: bytes) -> int:
        """Where the frames begin."""
        size = len(PREFACE)
        if data[:size] != PREFACE[: len(data)]:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "no HTTP/2")
        if len(data) < size:
            return 0
        self._preface_came = True
        return size

    def _frames(self, data: bytes, at: int) -> int:
        """Where the first incomplete frame begins."""
        if not self._preface_came:
            return at
        unpack, last = FRAME_HEAD.unpack_from, len(data) - HEAD_BYTES
        while at <= last:
            high, low, kind, flags, stream_id = unpack(data, at)
            length = high << 8 | low
            begin = at + HEAD_BYTES
            end = begin + length
            if length > MAX_FRAME_BYTES:
                raise Http2Error(Http2Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            if end > len(data):
                break
            stream_id &= LAST_STREAM
            if self._heads.open_stream or not self.has_begun:
                self._check_turn(kind, flags, stream_id)
            if kind == DATA:
                self._data(stream_id, flags, data, begin, end)
            elif kind == HEADERS:
                self._headers(stream_id, flags, data[begin:end])
            elif kind == CONTINUATION:
                self._continuation(flags, data[begin:end])
            elif kind == WINDOW_UPDATE:
                self._window_update(stream_id, data[begin:end])
            else:
                self._control(kind, flags, stream_id, data[begin:end])
            at = end
        return at

    def _check_turn(self, kind: int, flags: int, stream_id: int) -> None:
        if not self.has_begun:
            if kind != SETTINGS or flags & ACK:
                raise Http2Error(Http2Code.PROTOCOL_ERROR, "the first frame is not the peer's settings")
            self.has_begun = True
        elif kind != CONTINUATION or stream_id != self._heads.open_stream:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "a frame amid the header block of another")

    def _spend(self, cost: int) -> None:
        if not self._allowance.spend(cost, self._now):
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, "too many frames that serve nothing")

    # --- requests -------------------------------------------------------------------------------------------------

    def _headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, f"a request on stream {stream_id}")
        if flags & (PADDED | WITH_PRIORITY):
            payload = _without_padding(payload, flags)
            if flags & WITH_PRIORITY:
                if len(payload) < _PRIORITY_BYTES:
                    raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "a priority without all bytes")
                if _U32.unpack_from(payload)[0] & LAST_STREAM == stream_id:
                    raise Http2Error(Http2Code.PROTOCOL_ERROR, "a stream that depends on itself")
                payload = payload[_PRIORITY_BYTES:]
        if flags & END_HEADERS:
            self._head(stream_id, flags, payload)
        else:
            self._heads.begin(stream_id, flags, payload)

    def _continuation(self, flags: int, payload: bytes) -> None:
        stream_id = self._heads.open_stream
        if not stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "a continuation of nothing")
        self._heads.go_on(payload)
        if flags & END_HEADERS:
            self._head(stream_id, *self._heads.complete())

    def _head(self, stream_id: int, flags: int, block: bytes) -> None:
        """The block of a request, or of its trailers, is complete."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._trailers(stream, flags, block)
            return
        if stream_id <= self._last:
            self._heads.decoded(block)
            self._closed(stream_id, "fields")
            return
        if stream_id > self._last + 2:
            self._skipped = stream_id - 2
        self._last = stream_id
        try:
            head = self._heads.head(block)
        except Malformed:
            self._refuse(stream_id, Http2Code.PROTOCOL_ERROR, RESET_COST)
            return
        if stream_id > self._refused_above or len(self._streams) >= self._max_streams:
            self._refuse(stream_id, Http2Code.REFUSED_STREAM, FRAME_COST)
            return
        ended = flags & END_STREAM != 0
        if head is not None and ended and head.content_length > 0:
            self._refuse(stream_id, Http2Code.PROTOCOL_ERROR, RESET_COST)
            return
        stream = self._streams[stream_id] = Http2Stream(
            stream_id,
            -1 if head is None else head.content_length,
            self._peer_stream_window,
            STREAM_WINDOW_BYTES,
            ended,
        )
        begun = RequestBegun(stream, head, ended)
        if not ended:
            self._begun[stream_id] = begun
        self._events.append(begun)

    def _trailers(self, stream: Http2Stream, flags: int, block: bytes) -> None:
        """They end a request, and say nothing that is used."""
        fields = self._heads.decoded(block)
        if stream.remote_ended:
            self._fail(stream, Http2Code.STREAM_CLOSED)
            return
        is_sound = all(is_sound and name[0] != ":" for name, _, _, is_sound in fields or ())
        if not is_sound or not flags & END_STREAM or stream.left > 0:
            self._fail(stream, Http2Code.PROTOCOL_ERROR)
            return
        self._ended(stream)
        self._events.append(DataCame(stream, b"", True))

    def _data(self, stream_id: int, flags: int, data: bytes, begin: int, end: int) -> None:
        length = end - begin
        self._receive_window -= length
        if self._receive_window < 0:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, "more bytes than the connection's window")
        stream = self._streams.get(stream_id)
        if stream is None:
            self._closed(stream_id, "data")
            return
        if stream.remote_ended:
            self._fail(stream, Http2Code.STREAM_CLOSED)
            return
        stream.receive_window -= length
        if stream.receive_window < 0:
            self._fail(stream, Http2Code.FLOW_CONTROL_ERROR)
            return
        if flags & PADDED:
            payload = _without_padding(data[begin:end], PADDED)
            stream.owed += length - len(payload)
        else:
            payload = data[begin:end]
        ended = flags & END_STREAM != 0
        if len(payload) < SMALL_DATA_BYTES and not ended:
            self._spend(FRAME_COST)
            if not payload:
                return
        if stream.left >= 0:
            stream.left -= len(payload)
            if stream.left < 0 or (ended and stream.left):
                self._fail(stream, Http2Code.PROTOCOL_ERROR)
                return
        begun = self._begun.pop(stream_id, None)
        if not ended:
            self._events.append(DataCame(stream, payload, False))
            return
        self._ended(stream)
        if begun is None:
            self._events.append(DataCame(stream, payload, True))
        else:
            begun.data, begun.ended = payload, True

    def _ended(self, stream: Http2Stream) -> None:
        """The peer has said all."""
        stream.remote_ended = True
        if stream.local_ended:
            del self._streams[stream.id]

    def _closed(self, stream_id: int, what: str) -> None:
        """Something comes for a stream that is not open. Raises Http2Error unless the peer could not know it."""
        if stream_id == 0 or stream_id > self._last or not stream_id & 1:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, f"{what} of stream {stream_id}, which was never open")
        if stream_id in self._late:
            return
        if stream_id <= self._skipped:
            raise Http2Error(
                Http2Code.PROTOCOL_ERROR, f"{what} of stream {stream_id}, which is too old to be opened"
            )
        raise Http2Error(Http2Code.STREAM_CLOSED, f"{what} of stream {stream_id}, which has ended")

    # --- control --------------------------------------------------------------------------------------------------

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == RST_STREAM:
            self._rst_stream(stream_id, payload)
        elif kind == SETTINGS:
            self._settings(stream_id, flags, payload)
        elif kind == PING:
            self._ping(stream_id, flags, payload)
        elif kind == PRIORITY:
            self._priority(stream_id, payload)
        elif kind == PUSH_PROMISE:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "a push of a client")
        elif kind == GOAWAY and stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "GOAWAY of a stream")
        else:  # one that leaves still gets its answers; other kinds are extensions
            self._spend(FRAME_COST)

    def _rst_stream(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != _U32.size:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "RST_STREAM of another length")
        if stream_id == 0 or stream_id > self._last or not stream_id & 1:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, f"a reset of stream {stream_id}, which was never open")
        stream = self._streams.get(stream_id)
        self._spend(FRAME_COST if stream is None else RESET_COST)
        if stream is not None:
            self._forget(stream)
            self._events.append(RequestEnded(stream, _U32.unpack(payload)[0]))

    def _settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "settings of a stream")
        if flags & ACK:
            if payload:
                raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "an acknowledgement of settings that has some")
            self._spend(FRAME_COST)
            return
        if len(payload) % _SETTING.size:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "settings that are cut")
        self._spend(FRAME_COST + len(payload) // _SETTING.size // SETTINGS_A_COST)
        for key, value in _SETTING.iter_unpack(payload):
            if key == SETTINGS_INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif key == SETTINGS_MAX_FRAME_SIZE:
                if not MAX_FRAME_BYTES <= value <= MOST_FRAME_BYTES:
                    raise Http2Error(Http2Code.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._peer_frame_bytes = min(value, 4 * MAX_FRAME_BYTES)
            elif key == SETTINGS_ENABLE_PUSH and value > 1:
                raise Http2Error(Http2Code.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH={value}")
        self._out.append(frame(SETTINGS, ACK, 0))

    def _resize_windows(self, size: int) -> None:
        if size > MOST_WINDOW_BYTES:
            raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, f"windows of {size} bytes")
        more, self._peer_stream_window = size - self._peer_stream_window, size
        if not more:
            return
        self._spend(len(self._streams) // STREAMS_A_COST)
        for stream in self._streams.values():
            stream.send_window += more
            if stream.send_window > MOST_WINDOW_BYTES:
                raise Http2Error(Http2Code.FLOW_CONTROL_ERROR, "a window that is too large")
            if stream.unsent and stream.send_window > 0:
                self._ready[stream] = None
        self._send_unsent()

    def _ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != _PING_BYTES:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "a ping of another length")
        self._spend(FRAME_COST)
        if flags & ACK:
            self._events.append(PingAnswered(payload))
        else:
            self._out.append(frame(PING, ACK, 0, payload))

    def _priority(self, stream_id: int, payload: bytes) -> None:
        self._spend(FRAME_COST)
        if not stream_id:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "a priority of no stream")
        if len(payload) != _PRIORITY_BYTES:
            code = Http2Code.FRAME_SIZE_ERROR
        elif _U32.unpack_from(payload)[0] & LAST_STREAM == stream_id:
            code = Http2Code.PROTOCOL_ERROR
        else:
            return  # priorities are obsolete (5.3.2)
        if stream_id in self._streams:
            self._fail(self._streams[stream_id], code)
        else:
            raise Http2Error(code, "a priority of another length, or of a stream over itself")

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != _U32.size:
            raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE of another length")
        more = _U32.unpack(payload)[0] & LAST_STREAM
        if more < SMALL_INCREMENT:
            self._spend(FRAME_COST)
        if not stream_id:
            self._send_window += more
            if not more or self._send_window > MOST_WINDOW_BYTES:
                code = Http2Code.FLOW_CONTROL_ERROR if more else Http2Code.PROTOCOL_ERROR
                raise Http2Error(code, f"a window that is opened by {more} to {self._send_window} bytes")
        else:
            stream = self._streams.get(stream_id)
            if stream is None:
                if stream_id > self._last or not stream_id & 1:
                    raise Http2Error(
                        Http2Code.PROTOCOL_ERROR, f"a window of stream {stream_id}, which was never open"
                    )
                return
            stream.send_window += more
            if not more or stream.send_window > MOST_WINDOW_BYTES:
                self._fail(stream, Http2Code.FLOW_CONTROL_ERROR if more else Http2Code.PROTOCOL_ERROR)
                return
            if not stream.unsent or stream.send_window <= 0:
                return
            self._ready[stream] = None
        if self._ready:
            self._send_unsent()

    # --- answers --------------------------------------------------------------------------------------------------

    def begin_answer(self, stream: Http2Stream, block: bytes) -> None:
        if not stream.local_ended:
            self._out.append(frame_head(HEADERS, END_HEADERS, stream.id, len(block)) + block)

    def answer(self, stream: Http2Stream, block: bytes, data: bytes, last_block: bytes) -> None:
        """A whole answer."""
        size = len(data)
        if (
            size > self._peer_frame_bytes
            or size > self._send_window
            or size > stream.send_window
            or stream.local_ended
            or not stream.remote_ended
        ):
            self.begin_answer(stream, block)
            self.send(stream, data, last_block)
            return
        self._send_window -= size
        head, stream_id = FRAME_HEAD.pack, stream.id
        self._out += (
            head(0, len(block), HEADERS, END_HEADERS, stream_id),
            block,
            head(size >> 8, size & 0xFF, DATA, 0, stream_id),
            data,
            head(0, len(last_block), HEADERS, END_HEADERS | END_STREAM, stream_id),
            last_block,
        )
        stream.local_ended = True
        self._allowance.earn()
        del self._streams[stream_id]

    def send(self, stream: Http2Stream, data: bytes, last_block: bytes | None = None) -> None:
        """``last_block``: the trailers, with which the stream ends. Of a stream that has ended nothing is sent."""
        if stream.local_ended:
            return
        if stream.unsent is None and len(data) <= self._send_window and len(data) <= stream.send_window:
            self._put(stream, data)
        else:
            if stream.unsent is None:
                stream.unsent = deque()
                self._waiting_streams += 1
            stream.unsent.append(memoryview(data))
            stream.unsent_bytes += len(data)
            self.unsent_bytes += len(data)
            if stream.send_window > 0:
                self._ready[stream] = None
                self._send_unsent()
        if last_block is not None:
            self.end_answer(stream, last_block)

    def end_answer(self, stream: Http2Stream, block: bytes) -> None:
        """With trailers, behind what is not sent yet."""
        if stream.local_ended:
            return
        if stream.unsent is not None:
            stream.last_block = block
            return
        self._out.append(frame_head(HEADERS, END_HEADERS | END_STREAM, stream.id, len(block)) + block)
        stream.local_ended = True
        self._allowance.earn()
        if stream.remote_ended:
            self._streams.pop(stream.id, None)
        else:  # the answer does not wait for the rest of the request (8.1)
            self.reset(stream, Http2Code.NO_ERROR)

    def _put(self, stream: Http2Stream, data: bytes | memoryview) -> None:
        """Within both windows."""
        size = len(data)
        self._send_window -= size
        stream.send_window -= size
        most = self._peer_frame_bytes
        if size <= most:
            self._out.append(frame_head(DATA, 0, stream.id, size) + data)
            return
        view = memoryview(data)
        for at in range(0, size, most):
            part = view[at : at + most]
            self._out.append(frame_head(DATA, 0, stream.id, len(part)) + part)

    def _send_unsent(self) -> None:
        """As much as the windows allow, a frame of each stream in turn."""
        ready, most = self._ready, self._peer_frame_bytes
        while ready and self._send_window > 0:
            stream = next(iter(ready))
            del ready[stream]
            unsent = stream.unsent
            if not unsent or stream.send_window <= 0:
                continue
            first = unsent[0]
            part = first[: min(most, self._send_window, stream.send_window)]
            self._put(stream, part)
            stream.unsent_bytes -= len(part)
            self.unsent_bytes -= len(part)
            if len(part) < len(first):
                unsent[0] = first[len(part) :]
            else:
                unsent.popleft()
            if unsent:
                if stream.send_window > 0:
                    ready[stream] = None
                continue
            stream.unsent = None
            self._waiting_streams -= 1
            if stream.last_block is not None:
                self.end_answer(stream, stream.last_block)
            else:
                self._events.append(WindowOpened(stream))

    def reset(self, stream: Http2Stream, code: Http2Code) -> None:
        """End the stream at once."""
        if self._streams.get(stream.id) is stream:
            self._forget(stream)
            self._put_reset(stream.id, code)

    def _fail(self, stream: Http2Stream, code: Http2Code) -> None:
        """The stream ends because of what the peer has sent."""
        self._spend(RESET_COST)
        self._forget(stream)
        self._put_reset(stream.id, code)
        self._events.append(RequestEnded(stream, code))

    def _refuse(self, stream_id: int, code: Http2Code, cost: int) -> None:
        """The stream is never opened."""
        self._spend(cost)
        self._put_reset(stream_id, code)

    def _put_reset(self, stream_id: int, code: Http2Code) -> None:
        self._late[stream_id] = None
        if len(self._late) > MAX_LATE:
            del self._late[next(iter(self._late))]
        self._out.append(frame(RST_STREAM, 0, stream_id, _U32.pack(code)))

    def _forget(self, stream: Http2Stream) -> None:
        self._streams.pop(stream.id, None)
        self._ready.pop(stream, None)
        self.unsent_bytes -= stream.unsent_bytes
        self._waiting_streams -= stream.unsent is not None
        stream.unsent, stream.unsent_bytes, stream.last_block = None, 0, None
        stream.local_ended = stream.remote_ended = True

    def used(self, stream: Http2Stream, count: int) -> None:
        """So many bytes of a request need no memory any more: the peer may send as many more."""
        stream.owed += count
        if stream.owed >= STREAM_WINDOW_BYTES // 2 and not stream.remote_ended:
            self._out.append(frame(WINDOW_UPDATE, 0, stream.id, _U32.pack(stream.owed)))
            stream.receive_window += stream.owed
            stream.owed = 0

    # --- the connection -------------------------------------------------------------------------------------------

    def ping(self, payload: bytes) -> None:
        """Eight bytes, which come back in PingAnswered."""
        self._out.append(frame(PING, 0, 0, payload))

    def announce_end(self) -> None:
        """The peer shall open no further streams. Those that are on their way are served (6.8)."""
        self._out.append(frame(GOAWAY, 0, 0, _GOAWAY.pack(LAST_STREAM, Http2Code.NO_ERROR)))

    @property
    def refuses_streams(self) -> bool:
        return self._refused_above != LAST_STREAM

    def refuse_streams(self) -> None:
        """Streams that are opened from now on are refused, so that their requests can be repeated elsewhere."""
        if not self.refuses_streams:
            self._refused_above = self._last
            self._end(Http2Code.NO_ERROR)

    def _end(self, code: Http2Code) -> None:
        self._out.append(frame(GOAWAY, 0, 0, _GOAWAY.pack(self._last, code)))

    def to_send(self) -> list[bytes]:
        """The bytes since the last call."""
        out = self._out
        self._out = []
        return out


def _without_padding(payload: bytes, flags: int) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload:
        raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "padding without its length")
    padding = payload[0]
    if padding >= len(payload):
        raise Http2Error(Http2Code.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - padding]
