"""The interface between a core (broker, name server) and the server that owns the sockets.

The server passes received commands to the core. The core appends frames to ``Session.out``, and the server
writes the sessions of the shared outbox, once per turn of its loop. Neither blocks the other, and neither
knows the other's types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mqspark.message import encode_host
from mqspark.protocol.command import Command

CERTIFICATE_NAME = "certificateName"
"""Attribute of a session whose peer has shown a trusted certificate: the common name of its subject."""


class Session:
    """One remoting connection as a core sees it.

    ``peer`` is ``address:port``, ``peer_host`` the same as BORNHOST bytes, ``local`` this end as the socket has it.
    ``fast`` tells whether it came in on the broker's fast port. ``attributes`` is for the core's own data (client ids,
    groups). A closed session discards what is sent.
    """

    __slots__ = (
        "_opaque", "_outbox", "attributes", "fast", "id", "local", "long_answers", "open",
        "out", "out_bytes", "peer", "peer_host", "room",
    )  # fmt: skip

    def __init__(
        self,
        session_id: int,
        peer_address: str,
        peer_port: int,
        outbox: list[Session],
        *,
        fast: bool = False,
    ) -> None:
        self.id = session_id
        self.peer = f"[{peer_address}]:{peer_port}" if ":" in peer_address else f"{peer_address}:{peer_port}"
        self.peer_host = encode_host(peer_address, peer_port)
        self.local = ""
        """Empty until the server sets it, and without a socket."""
        self.fast = fast
        self.open = True
        self.long_answers = 0
        """Number of answers in progress in slices. While there is one, the server passes no further command."""
        self.room = 1 << 62
        """Bytes that may be sent before the peer has to read. The server updates it. When it is used up,
        large frames that are unsolicited or late should not be sent."""
        self.out: list[bytes | memoryview] = []
        self.out_bytes = 0
        """Size of all buffers in ``out``."""
        self.attributes: dict[str, object] = {}
        self._outbox = outbox
        self._opaque = 0

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        """Queue buffers for writing, in order. The first one since the last write puts the session into the
        outbox."""
        if not self.open:
            return
        if not self.out:
            self._outbox.append(self)
        self.out.append(buffer)
        size = len(buffer)
        if more:
            self.out += more
            size += sum(map(len, more))
        self.out_bytes += size
        self.room -= size

    def send_sized(
        self, buffer: bytes | memoryview, more: Sequence[bytes | memoryview], more_bytes: int
    ) -> None:
        """``send`` for a caller that knows the size of ``more``, which may be hundreds of records."""
        if not self.open:
            return
        if not self.out:
            self._outbox.append(self)
        self.out.append(buffer)
        self.out += more
        size = len(buffer) + more_bytes
        self.out_bytes += size
        self.room -= size

    def take(self) -> list[bytes | memoryview]:
        """What is to be written now. The server calls it after taking the session from the outbox."""
        out, self.out, self.out_bytes = self.out, [], 0
        return out

    def take_first(self, most: int) -> list[bytes | memoryview]:
        """The first ``most`` bytes of what is to be written. The rest stays at the head of ``out``, and this session
        out of the outbox: who took a part takes the rest, too."""
        if self.out_bytes <= most:
            return self.take()
        left = most
        for number, buffer in enumerate(self.out):  # noqa: B007 - where the part ends
            if len(buffer) > left:
                break
            left -= len(buffer)
        part = self.out[:number]
        if left:
            view = memoryview(buffer)
            part.append(view[:left])
            self.out[number] = view[left:]
        del self.out[:number]
        self.out_bytes -= most
        return part

    def close(self) -> None:
        """Send nothing more. The server closes the connection when ``open`` is false."""
        if self.open:
            self.open = False
            if not self.out:
                self._outbox.append(self)

    def next_opaque(self) -> int:
        """The number of the next request that the server itself sends on this connection."""
        opaque = self._opaque
        self._opaque = (opaque + 1) & 0x7FFFFFFF
        return opaque

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.peer}{'' if self.open else ' closed'}>"


Take = Callable[[Session, bytes, int], int]
"""``take(session, data, at)`` of a core handles the requests at whose first one ``at`` points, as far as it can without
commands. Returns where the first frame begins that it leaves. ``data`` may end within a frame."""


class Core(Protocol):
    """What the server drives. All calls come from one thread."""

    def connected(self, session: Session) -> None: ...

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        """Handle commands one after the other, taken lazily: the caller ends the iterator when the time is
        over."""

    def disconnected(self, session: Session) -> None:
        """The connection has ended; ``session.open`` is already False."""

    def turn(self) -> None:
        """The end of one turn of the loop: everything received in it has been passed."""

    @property
    def work_waits(self) -> bool:
        """Whether ``work`` has to be called for long work."""

    def work(self) -> bool:
        """Do one slice of long work. Returns whether more is left. A turn follows."""

    def tick(self) -> int:
        """Run what is due. Returns the milliseconds until the next call."""
