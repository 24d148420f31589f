"""Zones of brokers and clients, by the variables of their environment that RocketMQ has for that."""

from __future__ import annotations

import pytest

from mqspark import Message, Producer
from mqspark.errors import ClientError
from mqspark.testing import Broker


def test_a_client_in_zone_mode_uses_the_brokers_of_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_ZONE", "east")
    with Broker() as broker:
        with Producer(broker.namesrv, group="p") as producer:
            producer.send(Message.of("Orders", b"x"))
        monkeypatch.setenv("ROCKETMQ_ZONE_MODE", "true")
        with Producer(broker.namesrv, group="p") as producer:
            producer.send(Message.of("Orders", b"x"))
        monkeypatch.setenv("ROCKETMQ_ZONE", "west")
        with Producer(broker.namesrv, group="p") as producer, pytest.raises(ClientError):
            producer.send(Message.of("Orders", b"x"))
        monkeypatch.delenv("ROCKETMQ_ZONE_MODE")
        with Producer(broker.namesrv, group="p") as producer:
            producer.send(Message.of("Orders", b"x"))
