"""The clients that writes keep open: Spark reuses workers between tasks, and connecting anew costs more than sending
the rows of a small batch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mqspark.arrow.writing.sendchoice import SendChoice
from mqspark.arrow.writing.sendrows import new_client
from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.credentials import Credentials
from pyspark_pymq.watching import is_of_spark

MAX_CLIENTS = 8
IDLE_S = 30.0
"""Well before brokers close idle connections, after two minutes (serverChannelMaxIdleTimeSeconds)."""

_Key = tuple[int, str, int, int, Credentials | None]


class KeptClients:
    """A worker serves queries of several users: each has clients of its own. Of one thread at a time."""

    def __init__(self, is_worker: Callable[[], bool] = is_of_spark, idle_s: float = IDLE_S) -> None:
        self._is_worker = is_worker
        self._idle_s = idle_s
        self.waiting: dict[_Key, tuple[float, BlockingClient]] = {}
        """The clients that no write uses, and when each was used last."""

    @contextmanager
    def lent(self, options: SendChoice) -> Iterator[BlockingClient]:
        """A client for one write. In a process of Spark's the next write gets it, too, unless this one fails."""
        credentials = options.signing.credentials()
        key = os.getpid(), options.nameserver, options.send_timeout_ms, options.retry_timeout_ms, credentials
        client = self._taken(key) or new_client(options)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        if self._is_worker():
            self._keep(key, client)
        else:
            client.close()

    def close(self) -> None:
        while self.waiting:
            self.waiting.popitem()[1][1].close()

    def _taken(self, key: _Key) -> BlockingClient | None:
        used_at, client = self.waiting.pop(key, (0.0, None))
        if client is None:
            return None
        if time.monotonic() - used_at > self._idle_s:
            client.close()
            return None
        client.forget_closed()
        return client

    def _keep(self, key: _Key, client: BlockingClient) -> None:
        found = self.waiting.pop(key, None)
        if found is not None:
            found[1].close()
        while len(self.waiting) >= MAX_CLIENTS:
            self.waiting.pop(next(iter(self.waiting)))[1].close()
        self.waiting[key] = time.monotonic(), client


KEPT = KeptClients()
"""Those of this process."""
