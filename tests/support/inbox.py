"""A listener that keeps what it is given."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from mqspark import MessageExt
from tests.support.waiting import eventually


class Inbox:
    """``answer``: what it returns for a message, or raises."""

    def __init__(self, answer: Callable[[MessageExt], object] = lambda message: None) -> None:
        self._lock = threading.Lock()
        self._answer = answer
        self.messages: list[MessageExt] = []

    def __call__(self, message: MessageExt) -> object:
        with self._lock:
            self.messages.append(message)
        return self._answer(message)

    def bodies(self) -> Counter[bytes]:
        with self._lock:
            return Counter(message.body for message in self.messages)

    def deliveries(self, count: int = 0) -> list[tuple[bytes, int]]:
        """Bodies with their reconsume times, once there are ``count``."""
        eventually(lambda: len(self.messages) >= count, lambda: f"{count} messages, not {self.messages}", 60)
        with self._lock:
            return [(message.body, message.reconsume_times) for message in self.messages]

    def of_queues(self) -> dict[int, list[int]]:
        """Queue id → the offsets that came, in their order."""
        with self._lock:
            found: dict[int, list[int]] = {}
            for message in self.messages:
                found.setdefault(message.queue_id, []).append(message.queue_offset)
            return found
