"""File descriptors of this process, shared between its connections and its files.

A refused connection affects one peer; a file that cannot be opened stops all messages. Descriptors that a store may
need are therefore reserved, and connections (remoting, slaves) share the rest of RLIMIT_NOFILE. HTTP has its own
reserved number.
"""

from __future__ import annotations

from mqspark.store.disk.files import descriptor_limit

OTHERS = 64
"""Reserve for everything that is neither a connection nor a file of a store: listening sockets, logs, libraries, name
servers."""


class Descriptors:
    def __init__(self) -> None:
        self.reserved = 0
        """Reserve for the files of a store, and for HTTP."""
        self.connections = 0

    @property
    def room(self) -> int:
        """The limit of connections. It is positive even with several stores in one process."""
        limit = descriptor_limit()
        return max(limit // 4, limit - self.reserved - OTHERS)

    def reserve(self, count: int) -> None:
        """Reserve ``count`` descriptors for files; a negative count releases them."""
        self.reserved += count

    def take(self, descriptor: int, closing: int = 0) -> bool:
        """Whether to accept another connection, which already has this descriptor. The system assigns the lowest
        free number, so the number shows how many are in use. ``closing``: connections that are about to close."""
        if self.connections >= self.room + closing or descriptor >= descriptor_limit() - OTHERS // 2:
            return False
        self.connections += 1
        return True

    def give_back(self) -> None:
        """Release the place of a connection that ``take`` accepted."""
        self.connections -= 1


PROCESS = Descriptors()
"""The descriptors of this process: RLIMIT_NOFILE limits the whole process."""
