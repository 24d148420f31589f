"""Callers of the gRPC service: RocketMQ's own client for Python, and a bare one that sends what it is given."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from mqspark.message import MessageExt
from mqspark.record.record import decode_records
from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import SERVICE
from tests.interop.python.starts import started
from tests.support.remoting import RawConnection

SIGNED_AT = "20261129T101112Z"


class BareCaller:
    """``caller.QueryRoute(request)`` returns the response, or an iterator of them. ``caller.metadata`` goes with each
    call."""

    def __init__(self, channel: grpc.Channel, **metadata: str) -> None:
        self._channel = channel
        self.metadata = {
            "x-mq-client-id": f"bare@{uuid.uuid4().hex[:8]}",
            "x-mq-language": "PYTHON",
            "x-mq-client-version": "5.1.2",
            **{name.replace("_", "-"): value for name, value in metadata.items()},
        }

    def __getattr__(self, name: str) -> Any:
        method = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
        make = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, True): self._channel.stream_stream,
        }[method.client_streaming, method.server_streaming]
        call = make(
            f"/{SERVICE}/{name}",
            request_serializer=getattr(pb, method.input_type.name).SerializeToString,
            response_deserializer=getattr(pb, method.output_type.name).FromString,
        )
        return lambda request, **options: call(
            request, **{"timeout": 10, "metadata": tuple(self.metadata.items()), **options}
        )


@contextmanager
def bare_caller(address: str | None, **metadata: str) -> Iterator[BareCaller]:
    assert address is not None
    with grpc.insecure_channel(address) as channel:
        yield BareCaller(channel, **metadata)


def signed(user: str, secret: str) -> dict[str, str]:
    """The metadata of a user, for ``bare_caller``."""
    digest = hmac.new(secret.encode(), SIGNED_AT.encode(), hashlib.sha1).hexdigest()
    return {
        "x_mq_date_time": SIGNED_AT,
        "authorization": f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={digest}",
    }


def resource(name: str) -> pb.Resource:
    return pb.Resource(name=name)


def endpoints(address: str) -> pb.Endpoints:
    host, _, port = address.rpartition(":")
    return pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))])


def message(topic: str, body: bytes = b"body", **system: Any) -> pb.Message:
    """A message of type NORMAL unless ``system`` says something else."""
    given = {"message_id": uuid.uuid4().hex.upper(), "message_type": pb.NORMAL, **system}
    return pb.Message(topic=resource(topic), body=body, system_properties=pb.SystemProperties(**given))


def receive_request(topic: str, group: str, **more: Any) -> pb.ReceiveMessageRequest:
    """A request for all tags, invisible for a minute."""
    request = pb.ReceiveMessageRequest(
        group=resource(group), message_queue=pb.MessageQueue(topic=resource(topic)), batch_size=32, **more
    )
    request.filter_expression.type, request.filter_expression.expression = pb.TAG, "*"
    request.invisible_duration.seconds, request.long_polling_timeout.seconds = 60, 5
    return request


@contextmanager
def rocketmq_producer(address: str | None, *topics: str, checker: Any = None) -> Iterator[Any]:
    """RocketMQ's own producer."""
    from rocketmq import ClientConfiguration, Credentials, Producer

    configuration = ClientConfiguration(address, Credentials(), "", 5)
    producer = started(lambda: Producer(configuration, topics, checker))
    try:
        yield producer
    finally:
        producer.shutdown()


def stored_messages(broker: Broker, topic: str, queues: int = 4) -> list[MessageExt]:
    """What a topic has, by pulls of remoting."""
    with RawConnection(broker.address) as connection:
        replies = [connection.pull(topic, queue, 0) for queue in range(queues)]
    return [each for reply in replies for each in decode_records(reply.body)]
