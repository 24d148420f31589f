"""The client for programs without an event loop: the same objects, blocking.

All of them share one background thread with a loop (``LoopThread``), which lives as long as one of them is
open. Producers and admins are safe to use from many threads; so are ``subscribe``, ``suspend``, ``stop`` and the like
of consumers, but messages of a lite pull consumer are for one thread at a time.

The other packages of the client must not know it.
"""

from __future__ import annotations

from mqspark.client.sync.generated import (
    AdminClient,
    LitePullConsumer,
    PopConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from mqspark.client.sync.loop import LoopThread

__all__ = [
    "AdminClient",
    "LitePullConsumer",
    "LoopThread",
    "PopConsumer",
    "Producer",
    "PushConsumer",
    "TransactionProducer",
]
