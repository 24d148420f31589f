"""Bytes of one connection on their way in and out: its first byte decides whether they are encrypted.

Must not know what the bytes mean, and the socket: its connection writes, closes and is called back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from mqspark.errors import ProtocolError
from mqspark_server.net.handshakes import Handshakes
from mqspark_server.net.servertls import HANDSHAKE_BYTE, Certificates, TlsStream, has_record


class GatedConnection(Protocol):
    """A connection behind such a gate."""

    def shake_hands(self) -> None: ...

    def write_cipher(self, data: bytes) -> None:
        """Send these bytes, if the connection is still open."""
        ...

    def hold(self, count: int) -> None:
        """It takes ``count`` bytes of memory before it has said anything; 0: no longer."""
        ...

    def fail(self, reason: str) -> None:
        """What came is neither plain text nor TLS as the server demands it: close."""
        ...

    def end_of_stream(self) -> None:
        """The peer has ended TLS: close when what came before has been handled."""
        ...


G = TypeVar("G", bound=GatedConnection)


class TlsGate(Generic[G]):
    """``handshakes`` are those of the server: each waits for its turn."""

    __slots__ = ("_certificates", "_connection", "_handshakes", "_hello", "_tls", "is_plain")

    def __init__(self, certificates: Certificates | None, handshakes: Handshakes[G], connection: G) -> None:
        self._certificates = certificates
        self._handshakes = handshakes
        self._connection = connection
        self._hello = b""
        """The beginning of a handshake, until its first record is complete and the handshake has a turn: OpenSSL's
        state takes a hundred times as much."""
        self._tls: TlsStream | None = None
        self.is_plain = False
        """Whether it is decided that the bytes are not encrypted."""

    def decoded(self, data: bytes) -> bytes:
        """The bytes for the protocol; b"" while there are none."""
        if self.is_plain:
            return data
        tls = self._tls
        if tls is None and not self._hello and not self._begins_tls(data[0]):
            return data if self.is_plain else b""
        try:
            if tls is None:
                self._hello += data
                self._connection.hold(len(self._hello))
                if not has_record(self._hello):
                    return b""
            else:
                tls.receive(data)
                if tls.established:
                    return self._decrypted(tls)
                self._connection.hold(tls.held_bytes)
        except ProtocolError as error:
            self._fail(error)
        else:
            self._handshakes.schedule(self._connection)
        return b""

    def _begins_tls(self, first: int) -> bool:
        """Whether the connection's first byte begins a handshake, which this server takes part in."""
        certificates = self._certificates
        if first != HANDSHAKE_BYTE:
            if certificates is not None and certificates.settings.required:
                self._connection.fail("it does not speak TLS (tls.server.mode=enforcing)")
            else:
                self.is_plain = True
            return False
        if certificates is None:
            self._connection.fail("it speaks TLS, which this server does not")
            return False
        self._handshakes.begin(self._connection)
        return True

    def _decrypted(self, tls: TlsStream) -> bytes:
        """Raises ProtocolError."""
        plain = b""
        with contextlib.suppress(EOFError):  # said by ``ended``, too
            plain = tls.read()
        if tls.ended:
            self._connection.end_of_stream()
        self._connection.write_cipher(tls.to_send())
        return plain

    def shake_hands(self) -> bytes | None:
        """Continue the handshake: about a millisecond of processor time. When it is complete: the bytes that came with
        its end."""
        try:
            tls = self._stream()
            if tls is None or tls.established:
                return None
            is_complete = tls.shake_hands()
            self._connection.write_cipher(tls.to_send())
            if not is_complete:
                return None
            self._handshakes.end(self._connection)
            self._connection.hold(0)
            return self._decrypted(tls)
        except ProtocolError as error:
            self._fail(error)
            return None

    def _stream(self) -> TlsStream | None:
        """OpenSSL's state, made at the first turn. Raises ProtocolError."""
        if self._tls is None and self._hello and self._certificates is not None:
            hello, self._hello = self._hello, b""
            self._tls = TlsStream(self._certificates.context())
            self._tls.receive(hello)
            self._connection.hold(self._tls.held_bytes)
        return self._tls

    def _fail(self, error: ProtocolError) -> None:
        if self._tls is not None:
            self._connection.write_cipher(self._tls.to_send())  # an alert says why
        self._connection.fail(str(error))

    @property
    def peer_name(self) -> str | None:
        """As ``TlsStream.peer_name``."""
        return None if self._tls is None else self._tls.peer_name

    @property
    def is_undecided(self) -> bool:
        """Nothing may be sent yet."""
        return not self.is_plain and (self._tls is None or not self._tls.established)

    def encoded(self, buffers: Iterable[bytes | memoryview]) -> bytes:
        """Raises ProtocolError."""
        return b"".join(buffers) if self._tls is None else self._tls.encrypt(buffers)

    def forget(self) -> None:
        """The connection has ended: free OpenSSL's state now, as the two refer to each other."""
        self._tls = None
        self._hello = b""

    def end(self) -> bytes:
        """What ends the TLS stream."""
        return b"" if self._tls is None else self._tls.end()
