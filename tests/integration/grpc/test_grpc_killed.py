"""A broker with gRPC is killed: what it said it has, it has, and nobody waits longer than an invisible time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mqspark.client.sync import AdminClient
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.grpcclients import BareCaller, bare_caller, message, resource

TOPIC, GROUP = "killed", "survivors"
INVISIBLE_S = 10


def send(caller: BareCaller, *bodies: bytes) -> None:
    for body in bodies:
        answer = caller.SendMessage(pb.SendMessageRequest(messages=[message(TOPIC, body)]))
        assert answer.status.code == pb.OK


def receive(caller: BareCaller, *, auto_renew: bool = False, batch: int = 32) -> list[pb.Message]:
    request = pb.ReceiveMessageRequest(
        group=resource(GROUP),
        message_queue=pb.MessageQueue(topic=resource(TOPIC)),
        batch_size=batch,
        auto_renew=auto_renew,
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
    )
    request.invisible_duration.seconds, request.long_polling_timeout.seconds = INVISIBLE_S, 5
    responses = list(caller.ReceiveMessage(request, timeout=30))
    return [each.message for each in responses if each.HasField("message")]


def ack(caller: BareCaller, *received: pb.Message) -> None:
    request = pb.AckMessageRequest(group=resource(GROUP), topic=resource(TOPIC))
    for each in received:
        request.entries.add(receipt_handle=each.system_properties.receipt_handle)
    assert caller.AckMessage(request).status.code == pb.OK


def kill(cluster: Cluster) -> None:
    os.kill(cluster.broker_pid, signal.SIGKILL)


@pytest.mark.slow("waits for an invisible time in real time")
def test_no_acknowledged_message_is_lost_and_none_is_stuck(tmp_path: Path) -> None:
    sent = [b"%d" % number for number in range(40)]
    with mqspark_cluster(tmp_path) as cluster:
        with AdminClient(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=1)
        with bare_caller(cluster.grpc) as caller:
            send(caller, *sent)
            done = receive(caller, batch=20)
            ack(caller, *done)
            held = receive(caller, batch=10)
            held_since = time.monotonic()
            kill(cluster)
    assert len(done) + len(held) == 30
    missing = set(sent) - {each.body for each in done}
    with mqspark_cluster(tmp_path) as cluster, bare_caller(cluster.grpc) as caller:
        while (
            missing
        ):  # those that were acknowledged may come again: offsets of groups are saved from time to time
            assert time.monotonic() < held_since + INVISIBLE_S + 60, f"{missing} are stuck"
            got = receive(caller)
            missing -= {each.body for each in got}
            if got:
                ack(caller, *got)
