"""mqspark: Apache RocketMQ's architecture in Python, native to Spark.

    from mqspark import Message, Producer

    with Producer("127.0.0.1:9876", group="PG") as producer:
        producer.send(Message.of("Orders", b"hi", tags="created"))

The names below are loaded on first use, so importing a part (``mqspark.store``, ``mqspark.record``) costs no
more than that part. ``mqspark.aio`` has the same names for programs with an event loop.

Every client takes the name servers and a group. Name servers are ``host:port``, several of them separated by
semicolons or in a list; without them the environment variable NAMESRV_ADDR counts. ``start`` or ``with``
starts a client; ``stop`` or the end of the block stops it. Times are whole milliseconds, in parameters that
end in ``_ms``. Errors are those of ``mqspark.errors``: ``ConfigError`` and ``InvalidMessage`` are raised at
once for calls that can never succeed, ``ClientError`` and its subclasses when a server or the connection to
it fails a request.

Producers, admins and consumers are thread-safe, except that the messages of one ``LitePullConsumer`` belong
to one thread at a time. Listeners that are functions are called in up to ``concurrency`` threads.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqspark import aio as aio
    from mqspark import errors as errors
    from mqspark import extensions as extensions
    from mqspark.client.admin import GroupOffset
    from mqspark.client.consumer.allocate import (
        Allocation,
        Averagely,
        AveragelyByCircle,
        ConsistentHash,
        Fixed,
        MachineRoom,
        MachineRoomNearby,
    )
    from mqspark.client.consumer.consumer_settings import (
        ConsumerSettings,
        LitePullConsumerSettings,
        PopConsumerSettings,
        PushConsumerSettings,
    )
    from mqspark.client.delivery.delivery import ConsumeStatus, RetryLater
    from mqspark.client.delivery.results import SendResult, SendStatus, TransactionState
    from mqspark.client.hooks.hooks import (
        ConsumeContext,
        EndTransactionContext,
        Interceptor,
        RecallContext,
        SendContext,
    )
    from mqspark.client.hooks.spans import OpenTelemetry
    from mqspark.client.producer.accumulator import AutoBatch
    from mqspark.client.producer.producer_settings import ProducerSettings
    from mqspark.client.producer.transaction import TransactionResult
    from mqspark.client.remoting.client_options import ClientOptions
    from mqspark.client.remoting.credentials import Credentials
    from mqspark.client.remoting.tls import TlsSettings
    from mqspark.client.sync import (
        AdminClient,
        LitePullConsumer,
        PopConsumer,
        Producer,
        PushConsumer,
        TransactionProducer,
    )
    from mqspark.client.typed.serializer import Serializer
    from mqspark.message import Message, MessageExt, MessageQueue
    from mqspark.protocol.bodies.client_bodies import ConsumeFromWhere, MessageModel

__version__ = "0.1.0"

__all__ = [
    "Producer",
    "TransactionProducer",
    "PushConsumer",
    "PopConsumer",
    "LitePullConsumer",
    "AdminClient",
    "ClientOptions",
    "Credentials",
    "TlsSettings",
    "Serializer",
    "ProducerSettings",
    "ConsumerSettings",
    "PushConsumerSettings",
    "PopConsumerSettings",
    "LitePullConsumerSettings",
    "Message",
    "MessageExt",
    "MessageQueue",
    "SendResult",
    "SendStatus",
    "TransactionResult",
    "TransactionState",
    "ConsumeStatus",
    "RetryLater",
    "AutoBatch",
    "Interceptor",
    "SendContext",
    "ConsumeContext",
    "EndTransactionContext",
    "RecallContext",
    "OpenTelemetry",
    "ConsumeFromWhere",
    "MessageModel",
    "GroupOffset",
    "Allocation",
    "Averagely",
    "AveragelyByCircle",
    "ConsistentHash",
    "Fixed",
    "MachineRoom",
    "MachineRoomNearby",
]

_PARTS = ("aio", "errors", "extensions")
_BLOCKING = frozenset(__all__[:6])
"""Everything else is the same for programs with an event loop."""


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "mqspark.client.sync" if name in _BLOCKING else "mqspark.aio"
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
