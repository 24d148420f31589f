"""Back-pressure of a producer: the limit of unanswered sends. Facts: RocketMQ's backPressureForAsyncSendNum and
backPressureForAsyncSendSize."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Protocol

from mqspark.errors import ConfigError


class Window:
    """Unanswered sends. Belongs to the running loop."""

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
        """Wait until one more send may start. A caller that then does not send must call ``decline``."""
        woken = False
        while self.full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if woken:
                self._waiting.appendleft(waiter)  # keeps its place
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
            # The room left by a large message may be enough for several.
            self._wake_one()

    def decline(self) -> None:
        """A caller that was given room does not use it: wake the next one."""
        if self._waiting and not self.full:
            self._wake_one()

    async def empty(self) -> None:
        """Wait until nothing is in flight."""
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


class WindowPlace(Protocol):
    """A send's place: whether it has room in a ``ThreadWindow``, which an interrupted thread does not know."""

    has_room: bool


class ThreadWindow:
    """Like ``Window``, for callers in any thread.

    A caller that finds it full waits until half of it is free, because a thread switch per message would cost
    more than the message. What was taken and what was given back are counted apart: only one thread, the loop's, gives
    back, so that it needs no lock for it.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._taken = self._taken_bytes = 0
        self._given = self._given_bytes = 0
        self._blocked = False
        self._lock = threading.RLock()
        self._half_free = threading.Condition(self._lock)

    def take(self, size_bytes: int, place: WindowPlace | None = None) -> None:
        """Wait for room. ``place`` knows whether an interrupted thread has got it: the counts and the mark change
        together, since an interruption comes with a call or a jump back only."""
        with self._lock:
            while (
                self._taken - self._given >= self._max_messages
                or self._taken_bytes - self._given_bytes >= self._max_bytes
            ):
                if self._blocked:
                    self._half_free.wait()
                else:
                    # What is given back before the mark is there wakes nobody, so look again.
                    self._blocked = True
            self._taken += 1
            self._taken_bytes += size_bytes
            if place is not None:
                place.has_room = True

    def give(self, size_bytes: int) -> None:
        """In the one thread that gives back."""
        self._given += 1
        self._given_bytes += size_bytes
        if (
            self._blocked
            and 2 * (self._taken - self._given) <= self._max_messages
            and 2 * (self._taken_bytes - self._given_bytes) <= self._max_bytes
        ):
            with self._lock:
                self._blocked = False
                self._half_free.notify_all()
