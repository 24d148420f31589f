"""The header blocks of one connection, to heads of requests.

Bounds: a block has MAX_BLOCK_BYTES in MAX_BLOCK_FRAMES frames (CVE-2024-27316), its fields MAX_LIST_BYTES, also when a
block of indices makes many of them.

Clients repeat their requests' heads: while the table of the decoder stays the same, a block that was read before is
looked up. One that changes the table in the same way as the one before is compared (``repeatedheads``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mqspark.errors import ProtocolError
from mqspark_server.net.http2.headerblocks import HeaderDecoder, ReadField
from mqspark_server.net.http2.http2frames import Http2Code, Http2Error
from mqspark_server.net.http2.http2streams import Malformed, RequestHead
from mqspark_server.net.http2.repeatedheads import HeadKind, RepeatedHead, repeated

MAX_LIST_BYTES = 16 * 1024
"""SETTINGS_MAX_HEADER_LIST_SIZE"""
MAX_BLOCK_BYTES = 2 * MAX_LIST_BYTES
MAX_BLOCK_FRAMES = 16
MAX_KNOWN_BYTES = 16 * 1024
"""Blocks that are kept with their heads."""
MAX_KINDS = 2
"""Kinds of heads that are kept, the newest."""
MAX_KIND_BYTES = 2 * 1024
"""The size of a head of one, as its list counts."""


class RequestHeads:
    __slots__ = (
        "_decoder", "_flags", "_kinds", "_known", "_known_bytes", "_parts", "_repeated", "_unread",
        "buffered_bytes", "open_stream",
    )  # fmt: skip

    def __init__(self, unread: Collection[str] = ()) -> None:
        """``unread``: fields whose values nobody reads. They are not in heads."""
        self._decoder = HeaderDecoder(MAX_LIST_BYTES)
        self._unread = unread
        self._kinds: list[HeadKind] = []
        self._repeated: RepeatedHead | None = None
        self._known: dict[bytes, RequestHead] = {}
        self._known_bytes = 0
        self._parts: list[bytes] = []
        """They are of a block that is not complete."""
        self.buffered_bytes = 0
        """The bytes of all parts."""
        self.open_stream = 0
        """The stream of the block that is not complete, which nothing but CONTINUATION may follow; 0: there is
        none."""
        self._flags = 0

    def begin(self, stream_id: int, flags: int, part: bytes) -> None:
        """``flags``: of the frame that begins the block."""
        self._parts, self.buffered_bytes = [part], len(part)
        self.open_stream, self._flags = stream_id, flags

    def go_on(self, part: bytes) -> None:
        """Raises Http2Error."""
        self._parts.append(part)
        self.buffered_bytes += len(part)
        if self.buffered_bytes > MAX_BLOCK_BYTES or len(self._parts) > MAX_BLOCK_FRAMES:
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, "a header block that is too long")

    def complete(self) -> tuple[int, bytes]:
        """The flags of its first frame, and the block."""
        block = b"".join(self._parts)
        self._parts, self.buffered_bytes, self.open_stream = [], 0, 0
        return self._flags, block

    def head(self, block: bytes) -> RequestHead | None:
        """None: its fields are too long. Raises Http2Error, and Malformed."""
        known = self._known.get(block)
        if known is not None:
            return known
        if self._repeated is not None:
            head = self._again(self._repeated, block)
            if head is not None:
                return head
        before = self._decoder.changes
        fields = self.decoded(block)
        if fields is None:
            return None
        if self._unread:
            unread = [number for number, field in enumerate(fields) if field[0] in self._unread]
            if unread:
                return self._shortened(block, fields, unread, self._decoder.changes != before)
        head = RequestHead(fields)
        size = len(block) + head.size
        if self._decoder.changes == before and self._known_bytes + size <= MAX_KNOWN_BYTES:
            self._known[block] = head
            self._known_bytes += size
        return head

    def _shortened(
        self, block: bytes, fields: list[ReadField], unread: Sequence[int], has_changed: bool
    ) -> RequestHead:
        """Without its unread fields. Raises Malformed."""
        place = unread[0]
        if not all(fields[each][3] for each in unread) or any(
            field[0][:1] == ":" for field in fields[place:]
        ):
            raise Malformed(f"{fields[place][0]} is malformed, or stands before a pseudo-header field")
        if len(unread) > 1 or place == len(fields) - 1 or sum(field[2] for field in fields) > MAX_KIND_BYTES:
            return RequestHead([field for number, field in enumerate(fields) if number not in unread])
        kind = self._kind([*fields[:place], *fields[place + 1 : -1]])
        if has_changed:
            self._repeated = repeated(self._decoder, block, fields, kind, place)
        return kind.head(fields[-1])

    def _kind(self, fields: list[ReadField]) -> HeadKind:
        kinds = self._kinds
        for kind in kinds:
            if kind.fields == fields:
                return kind
        kinds.append(HeadKind(fields))
        if len(kinds) > MAX_KINDS:
            del kinds[0]
        return kinds[-1]

    def _again(self, repeated: RepeatedHead, block: bytes) -> RequestHead | None:
        """Raises Http2Error, and Malformed, of a block that is read nevertheless."""
        before = self._decoder.changes
        try:
            return repeated.again(block)
        except ProtocolError as error:
            raise Http2Error(Http2Code.COMPRESSION_ERROR, str(error)) from None
        finally:
            if self._decoder.changes != before:
                self._forget_known()
                if repeated.is_spent:
                    self._repeated = None

    def decoded(self, block: bytes) -> list[ReadField] | None:
        """Its fields; None: they are too long. Raises Http2Error: no later block can be understood."""
        before = self._decoder.changes
        try:
            return self._decoder.decode(block)
        except ProtocolError as error:
            raise Http2Error(Http2Code.COMPRESSION_ERROR, str(error)) from None
        finally:
            if self._decoder.changes != before:
                self._repeated = None
                self._forget_known()

    def _forget_known(self) -> None:
        """The table has changed."""
        if self._known:
            self._known.clear()
            self._known_bytes = 0
