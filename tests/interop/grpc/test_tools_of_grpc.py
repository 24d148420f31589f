"""The unmodified mqadmin before a broker with clients of gRPC (RocketMQ's for Java), which it shows as any others."""

from pathlib import Path

import pytest

from tests.interop.driven import Client, message
from tests.interop.driver import Driver, JavaDriver, body_of
from tests.interop.proxy import unproxied
from tests.interop.topics import create_group, create_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)

TOPIC, GROUP = "ToolsOfGrpc", "tools-of-grpc"


@pytest.mark.slow("two JVMs, and commands of seconds; test_grpc_relays shows the same by our own tools")
def test_mqadmin_shows_clients_of_grpc(java: JavaDriver, grpc: Driver, tmp_path: Path) -> None:
    with unproxied(tmp_path / "tools", {}) as proxy:
        cluster = proxy.cluster

        def admin(*arguments: str) -> str:
            return java.mqadmin(*arguments, "-n", cluster.namesrv)

        create_topic(cluster, TOPIC)
        create_group(cluster, GROUP)
        client = Client(grpc, proxy)
        consumer = client.push(TOPIC, GROUP, "A || B")
        (sent,) = client.send(client.producer(TOPIC), message(TOPIC, b"of grpc", tag="A", keys=["key"]))
        assert [body_of(each) for each in client.take(consumer, 1)] == [b"of grpc"]

        connected = admin("consumerConnection", "-g", GROUP)
        client_id = next(line.split()[0] for line in connected.splitlines() if "JAVA" in line)
        assert [TOPIC, "A", "||", "B"] in [line.split() for line in connected.splitlines()]
        assert "CONSUME_PASSIVELY" in connected
        assert "JAVA" in admin("producerConnection", "-g", TOPIC, "-t", TOPIC)

        status = admin("consumerStatus", "-g", GROUP, "-i", client_id, "-s")
        assert "PUSH_CONSUMER" in status
        assert f"{'PROP_CONSUMEORDERLY':<40}: false" in status
        assert "java.lang.Thread.run" in status

        printed = admin("queryMsgByUniqueKey", "-i", sent["id"], "-t", TOPIC)
        assert f"consumerGroup={GROUP}, trackType=CONSUMED" in printed
        direct = admin("queryMsgByUniqueKey", "-i", sent["id"], "-t", TOPIC, "-g", GROUP, "-d", client_id)
        assert "CR_SUCCESS" in direct
        assert [body_of(each) for each in client.take(consumer, 1)] == [b"of grpc"]
        assert sent["id"] in admin("queryMsgByKey", "-k", "key", "-t", TOPIC)
        assert "Consume Diff Total: 0" in admin("consumerProgress", "-g", GROUP)
        client.stop()

        def left() -> bool:
            result = java.call(
                "mqadmin", arguments=["consumerConnection", "-g", GROUP, "-n", cluster.namesrv]
            )
            return client_id not in result["out"]

        eventually(left, "the consumer has left its group")
