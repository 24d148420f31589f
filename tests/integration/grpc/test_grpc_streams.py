"""Many calls at the same time over one connection."""

from __future__ import annotations

import threading
import time

from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.grpcclients import bare_caller, resource

CALLS = 2_000
BUSY_S = 1.0


def test_calls_that_come_while_the_server_is_busy_are_all_served(broker: Broker) -> None:
    refused = pb.ReceiveMessageRequest(group=resource("not a group"))
    refused.message_queue.topic.name = "topic"
    with bare_caller(broker.grpc_address) as caller:
        list(caller.ReceiveMessage(refused))  # the connection is there
        busy = threading.Thread(target=lambda: broker.call(lambda: time.sleep(BUSY_S)))
        busy.start()
        streams = [caller.ReceiveMessage(refused, timeout=120) for _ in range(CALLS)]
        codes = {next(stream).status.code for stream in streams}
        busy.join()
    assert codes == {pb.ILLEGAL_CONSUMER_GROUP}
