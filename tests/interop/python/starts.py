"""Starts of RocketMQ's gRPC client for Python, made again where the client's own fault has spoilt them.

The client adds a callback to a call. Where the call has ended by then, the callback runs in the thread that starts the
client instead of the one with the client's event loop, and makes no telemetry stream. The client logs it and is of no
use. Imports nothing of the project.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CLIENT_LOG = "rocketmq-python-client"
FAULT = "There is no current event loop in thread"
ATTEMPTS = 5
"""About one start in a hundred is spoilt."""


class _Watching(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if FAULT in text:
            self.seen = text


@contextmanager
def _watching() -> Iterator[_Watching]:
    handler = _Watching()
    logging.getLogger(CLIENT_LOG).addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger(CLIENT_LOG).removeHandler(handler)


def started(make: Callable[[], Any]) -> Any:
    """A client that has started: the first one that is free of the fault. Another failure is the caller's."""
    for attempt in range(1, ATTEMPTS + 1):
        client = make()
        with _watching() as log:
            try:
                client.startup()
            except Exception:
                if not log.seen or attempt == ATTEMPTS:
                    raise
            else:
                if not log.seen:
                    return client
                client.shutdown()
        print(f"start {attempt} of RocketMQ's client is made again: {log.seen}", file=sys.stderr, flush=True)
    raise RuntimeError(f"{ATTEMPTS} starts of RocketMQ's client failed: {log.seen}")
