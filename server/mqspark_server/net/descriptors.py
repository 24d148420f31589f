"""File descriptors of this process, shared between its connections and its files.

A connection is refused in time; a file that cannot be opened stops messages. So what a store may need is reserved, and
connections (remoting, slaves) get what is left of RLIMIT_NOFILE. HTTP has a number of its own, which is reserved, too.
"""

from __future__ import annotations

from mqspark.store.disk.files import descriptor_limit

__all__ = ["PROCESS", "Descriptors"]

OTHERS = 64
"""For all that is neither a connection nor a file of a store: listening sockets, logs, libraries, name servers."""


class Descriptors:
    def __init__(self) -> None:
        self.reserved = 0
        """For files, and for HTTP."""
        self.connections = 0

    @property
    def room(self) -> int:
        """How many connections there may be in all: also with several stores in one process, some."""
        limit = descriptor_limit()
        return max(limit // 4, limit - self.reserved - OTHERS)

    def reserve(self, count: int) -> None:
        """For files that may be opened; less than none gives back."""
        self.reserved += count

    def take(self, descriptor: int, closing: int = 0) -> bool:
        """Whether there may be one more connection, which has this descriptor already. The system gives the lowest
        number that is free, so so many are in use, whoever has them. ``closing``: so many are about to be closed."""
        if self.connections >= self.room + closing or descriptor >= descriptor_limit() - OTHERS // 2:
            return False
        self.connections += 1
        return True

    def give_back(self) -> None:
        """A connection that ``take`` allowed is closed."""
        self.connections -= 1


PROCESS = Descriptors()
"""Those of this process: RLIMIT_NOFILE is one for all that runs in it."""
