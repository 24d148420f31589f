"""A crowd of strangers, a process of its own: ``python -m tests.security.sockets.crowd HOST PORT [tls]``.

2,000 connections that say nothing, 200 that send a frame byte by byte and come again when the server closes them, 50
that send a frame of 16 MiB but for its last byte. With ``tls``, those that say nothing have shaken hands before. Prints
"idle" when they have come, "there" when all have, and goes on until it is killed.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct
import sys
import time

IDLE, SLOW, LIARS = 2_000, 200, 50
CLAIM_BYTES = 16 << 20
PIECE = bytes(64 * 1024)
PAUSE_S = 0.5


def connected(address: tuple[str, int], context: ssl.SSLContext | None = None) -> socket.socket:
    sock = socket.create_connection(address, timeout=30)
    if context is not None:
        sock = context.wrap_socket(sock)
    sock.setblocking(False)
    return sock


class Liar:
    """Sends all but the last byte of the frame that it has announced."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = connected(address)
        self.left = CLAIM_BYTES - 9
        self.sock.send(struct.pack(">II", CLAIM_BYTES - 4, 100))

    def go_on(self) -> None:
        """Raises OSError once the server has closed the connection."""
        with contextlib.suppress(BlockingIOError):
            while self.left:
                self.left -= self.sock.send(PIECE[: self.left])


def main() -> None:
    address = sys.argv[1], int(sys.argv[2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context = None
    if sys.argv[3:] == ["tls"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    idle = [connected(address, context) for _ in range(IDLE)]
    print("idle", flush=True)
    slow = {number: connected(address) for number in range(SLOW)}
    liars = [Liar(address) for _ in range(LIARS)]
    print("there", flush=True)
    while idle:
        for number, sock in slow.items():
            try:
                sock.send(b"\0")
            except OSError:
                with contextlib.suppress(OSError):
                    slow[number] = connected(address)
        for liar in liars:
            with contextlib.suppress(OSError):
                liar.go_on()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
