"""mqspark for programs with an event loop: the names of ``mqspark`` with methods to be awaited.

    async with Producer("127.0.0.1:9876", group="PG") as producer:
        await producer.send(Message.of("Orders", b"hi"))

Name servers, times and errors are as in ``mqspark``. An object belongs to the event loop on which it was
started and is not thread-safe. Objects with one client id (``ClientOptions.instance_name``) share their
connections.
"""

from __future__ import annotations

from mqspark import __all__ as __all__
from mqspark.client.admin import AdminClient as AdminClient
from mqspark.client.admin import GroupOffset as GroupOffset
from mqspark.client.consumer.allocate import Allocation as Allocation
from mqspark.client.consumer.allocate import Averagely as Averagely
from mqspark.client.consumer.allocate import AveragelyByCircle as AveragelyByCircle
from mqspark.client.consumer.allocate import ConsistentHash as ConsistentHash
from mqspark.client.consumer.allocate import Fixed as Fixed
from mqspark.client.consumer.allocate import MachineRoom as MachineRoom
from mqspark.client.consumer.allocate import MachineRoomNearby as MachineRoomNearby
from mqspark.client.consumer.consumer_settings import ConsumerSettings as ConsumerSettings
from mqspark.client.consumer.consumer_settings import LitePullConsumerSettings as LitePullConsumerSettings
from mqspark.client.consumer.consumer_settings import PopConsumerSettings as PopConsumerSettings
from mqspark.client.consumer.consumer_settings import PushConsumerSettings as PushConsumerSettings
from mqspark.client.delivery.delivery import ConsumeStatus as ConsumeStatus
from mqspark.client.delivery.delivery import RetryLater as RetryLater
from mqspark.client.delivery.results import SendResult as SendResult
from mqspark.client.delivery.results import SendStatus as SendStatus
from mqspark.client.delivery.results import TransactionState as TransactionState
from mqspark.client.hooks.hooks import ConsumeContext as ConsumeContext
from mqspark.client.hooks.hooks import EndTransactionContext as EndTransactionContext
from mqspark.client.hooks.hooks import Interceptor as Interceptor
from mqspark.client.hooks.hooks import RecallContext as RecallContext
from mqspark.client.hooks.hooks import SendContext as SendContext
from mqspark.client.hooks.spans import OpenTelemetry as OpenTelemetry
from mqspark.client.lite.litepull import LitePullConsumer as LitePullConsumer
from mqspark.client.pop.pop import PopConsumer as PopConsumer
from mqspark.client.producer.accumulator import AutoBatch as AutoBatch
from mqspark.client.producer.producer import Producer as Producer
from mqspark.client.producer.producer_settings import ProducerSettings as ProducerSettings
from mqspark.client.producer.transaction import TransactionProducer as TransactionProducer
from mqspark.client.producer.transaction import TransactionResult as TransactionResult
from mqspark.client.push.push import PushConsumer as PushConsumer
from mqspark.client.remoting.client_options import ClientOptions as ClientOptions
from mqspark.client.remoting.credentials import Credentials as Credentials
from mqspark.client.remoting.tls import TlsSettings as TlsSettings
from mqspark.client.typed.serializer import Serializer as Serializer
from mqspark.message import Message as Message
from mqspark.message import MessageExt as MessageExt
from mqspark.message import MessageQueue as MessageQueue
from mqspark.protocol.bodies.client_bodies import ConsumeFromWhere as ConsumeFromWhere
from mqspark.protocol.bodies.client_bodies import MessageModel as MessageModel
