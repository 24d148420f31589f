"""How a core (broker, name server) and the shell that owns the sockets meet.

The shell gives received commands to the core; the core appends frames to ``Session.out`` and the shell writes
what the shared outbox names, once per turn of its loop. Neither blocks the other and neither knows the
other's types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mqspark.message import encode_host
from mqspark.protocol.command import Command

__all__ = ["Session", "Core"]


class Session:
    """One remoting connection as a core sees it.

    ``peer`` is ``address:port``, ``peer_host`` the same as BORNHOST bytes; ``fast`` says that it came in on
    the broker's fast port. ``attributes`` is the core's own notebook (client ids, groups). A closed session
    swallows what is sent.
    """

    __slots__ = (
        "_opaque",
        "_outbox",
        "attributes",
        "fast",
        "id",
        "local_port",
        "long_answers",
        "open",
        "out",
        "peer",
        "peer_host",
        "room",
    )

    def __init__(
        self,
        session_id: int,
        peer_address: str,
        peer_port: int,
        outbox: list[Session],
        *,
        local_port: int = 0,
        fast: bool = False,
    ) -> None:
        self.id = session_id
        self.peer = f"[{peer_address}]:{peer_port}" if ":" in peer_address else f"{peer_address}:{peer_port}"
        self.peer_host = encode_host(peer_address, peer_port)
        self.local_port = local_port
        self.fast = fast
        self.open = True
        self.long_answers = 0
        """Under way in slices; while there is one, the shell hands over no further command."""
        self.room = 1 << 62
        """So many bytes may be sent before the peer has to read; the shell says so anew whenever it looks. What is sent
        unasked, or late, and is large, is better not sent when there is none."""
        self.out: list[bytes | memoryview] = []
        self.attributes: dict[str, object] = {}
        self._outbox = outbox
        self._opaque = 0

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        """Queue buffers for writing, in order; the first ones since the last write enter the session in the
        outbox.
        """
        if not self.open:
            return
        if not self.out:
            self._outbox.append(self)
        self.out.append(buffer)
        self.room -= len(buffer)
        if more:
            self.out += more
            self.room -= sum(map(len, more))

    def take(self) -> list[bytes | memoryview]:
        """What is to be written now; the shell calls it when it has taken the session from the outbox."""
        out, self.out = self.out, []
        return out

    def close(self) -> None:
        """Nothing more goes out. The shell closes the connection when it sees ``open`` false."""
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


class Core(Protocol):
    """What the shell drives. All calls come from one thread."""

    def connected(self, session: Session) -> None: ...

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        """Handle one after the other, as they are taken: whoever gives them ends them when the time is over."""

    def disconnected(self, session: Session) -> None:
        """The connection has ended; ``session.open`` is False already."""

    def turn(self) -> None:
        """The end of one turn of the loop: everything received in it has been handed over."""

    @property
    def work_waits(self) -> bool:
        """Something takes long and wants ``work`` to be called."""

    def work(self) -> bool:
        """One slice of what takes long; whether more is left. A turn follows."""

    def tick(self) -> int:
        """Run what is due; the milliseconds until it wants to be called again."""
