"""How much may be under way at once: the back-pressure of a producer. Facts: RocketMQ's
backPressureForAsyncSendNum and backPressureForAsyncSendSize."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from mqspark.errors import ConfigError

__all__ = ["ThreadWindow", "Window"]


class Window:
    """Sends that are not answered yet. Belongs to the running loop."""

    __slots__ = ("_empty", "_waiting", "count", "max_bytes", "max_count", "size_bytes")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        if max_count < 1 or max_bytes < 1:
            raise ConfigError("the limits of what is in flight must be positive", key="max_in_flight")
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.count = 0
        self.size_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._empty: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        return self.count >= self.max_count or self.size_bytes >= self.max_bytes

    async def room(self) -> None:
        """Until one more may go; whoever does not, then, says so by ``decline``."""
        woken = False
        while self.full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if woken:
                self._waiting.appendleft(waiter)  # keeps its turn
            else:
                self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise
            woken = True
        if woken and self.count + 1 < self.max_count:
            # What a large message leaves may be room for several.
            self._wake_one()

    def decline(self) -> None:
        """Whoever found room has no use for it: the next one has."""
        if self._waiting and not self.full:
            self._wake_one()

    async def empty(self) -> None:
        """Until nothing is under way."""
        if self.count:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    def leave(self, size_bytes: int) -> None:
        self.count -= 1
        self.size_bytes -= size_bytes
        if self._waiting:
            self._wake_one()
        if not self.count and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class ThreadWindow:
    """The same for callers in any thread.

    Who finds it full waits until half of it is free: a change of threads for each message would cost more than
    the message.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages = 0
        self._bytes = 0
        self._blocked = False
        self._lock = threading.RLock()
        self._half_free = threading.Condition(self._lock)

    def take(self, size_bytes: int) -> None:
        with self._lock:
            while self._messages >= self._max_messages or self._bytes >= self._max_bytes:
                self._blocked = True
                self._half_free.wait()
            self._messages += 1
            self._bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        with self._lock:
            self._messages -= 1
            self._bytes -= size_bytes
            if (
                self._blocked
                and 2 * self._messages <= self._max_messages
                and 2 * self._bytes <= self._max_bytes
            ):
                self._blocked = False
                self._half_free.notify_all()
