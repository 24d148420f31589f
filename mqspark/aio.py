"""mqspark for programs with an event loop: the names of ``mqspark`` with methods to be awaited.

    async with Producer("127.0.0.1:9876", group="PG") as producer:
        await producer.send(Message.of("Orders", b"hi"))

Name servers, times and errors are as in ``mqspark``. An object belongs to the event loop on which it was
started and is not thread-safe. Objects with one client id (``ClientOptions.instance_name``) share their
connections.
"""

from __future__ import annotations

from mqspark.client.admin import AdminClient, GroupOffset
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
from mqspark.client.lite.litepull import LitePullConsumer
from mqspark.client.pop.pop import PopConsumer
from mqspark.client.producer.autobatch import AutoBatch
from mqspark.client.producer.producer import Producer
from mqspark.client.producer.producer_settings import ProducerSettings
from mqspark.client.producer.transaction import TransactionProducer, TransactionResult
from mqspark.client.push.push import PushConsumer
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.tls import TlsSettings
from mqspark.client.typed.serializer import Serializer
from mqspark.message import Message, MessageExt, MessageQueue
from mqspark.protocol.bodies.client_bodies import ConsumeFromWhere, MessageModel

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
