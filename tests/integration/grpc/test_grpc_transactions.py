"""Transactions with RocketMQ's own producer: decided at once, or when the broker asks over telemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.grpcclients import bare_caller, resource, rocketmq_producer, stored_messages
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def asking() -> Iterator[Broker]:
    """A broker that asks soon how transactions ended."""
    settings = {"grpcEnable": True, "transactionTimeOut": 300, "transactionCheckInterval": 300}
    with Broker(settings=settings) as one:
        yield one


def test_a_producer_ends_its_transactions(broker: Broker, topic_of_type: Callable[..., str]) -> None:
    from rocketmq import Message, TransactionChecker, TransactionResolution

    class Unasked(TransactionChecker):
        def check(self, message: Message) -> TransactionResolution:
            return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED

    topic = topic_of_type("decided", "TRANSACTION")
    with rocketmq_producer(broker.grpc_address, topic, checker=Unasked()) as producer:
        for body, commits in ((b"kept", True), (b"dropped", False)):
            given = Message()
            given.topic, given.body = topic, body
            transaction = producer.begin_transaction()
            producer.send(given, transaction)
            if commits:
                transaction.commit()
            else:
                transaction.rollback()
        (stored,) = eventually(lambda: stored_messages(broker, topic))
    assert stored.body == b"kept"


def test_a_broker_asks_the_producer_how_a_transaction_ended(asking: Broker) -> None:
    from rocketmq import Message, TransactionChecker, TransactionResolution

    asked: list[bytes] = []

    class Committing(TransactionChecker):
        def check(self, message: Message) -> TransactionResolution:
            asked.append(message.body)
            return TransactionResolution.COMMIT

    from mqspark.client.sync import AdminClient

    with AdminClient(asking.namesrv) as admin:
        admin.create_topic("orphans", attributes={"message.type": "TRANSACTION"})
    with rocketmq_producer(asking.grpc_address, "orphans", checker=Committing()) as producer:
        given = Message()
        given.topic, given.body = "orphans", b"left"
        producer.send(given, producer.begin_transaction())
        (stored,) = eventually(lambda: stored_messages(asking, "orphans"))
    assert (stored.body, asked) == (b"left", [b"left"])


def test_a_transaction_that_nobody_knows_is_refused(
    broker: Broker, topic_of_type: Callable[..., str]
) -> None:
    topic = topic_of_type("unknown-halves", "TRANSACTION")
    with bare_caller(broker.grpc_address) as caller:
        for transaction_id, code in (("", pb.INVALID_TRANSACTION_ID), ("0" * 32, pb.INTERNAL_SERVER_ERROR)):
            request = pb.EndTransactionRequest(
                topic=resource(topic), transaction_id=transaction_id, resolution=pb.COMMIT
            )
            assert caller.EndTransaction(request).status.code == code
