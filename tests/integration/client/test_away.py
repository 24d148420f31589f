"""A broker that goes costs a line of the log, and one when it is back, whatever its clients do meanwhile."""

from __future__ import annotations

import logging
import time

import pytest

import mqspark
from mqspark.testing import Cluster
from tests.support.waiting import eventually

FIRST = mqspark.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def test_a_broker_that_is_away_costs_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    got: list[bytes] = []
    with Cluster() as cluster, caplog.at_level(logging.INFO, "mqspark.client"):
        with mqspark.AdminClient(cluster.namesrv) as admin:
            admin.create_topic("T", queues=8)
        consumer = mqspark.PushConsumer(
            cluster.namesrv,
            group="g",
            listener=lambda message: got.append(message.body),
            consume_from=FIRST,
            persist_interval_ms=100,
            options=mqspark.ClientOptions(heartbeat_interval_ms=100, route_interval_ms=100),
        )
        consumer.subscribe("T")
        with consumer:
            with mqspark.Producer(cluster.namesrv, group="p") as producer:
                producer.send(mqspark.Message.of("T", b"before"))
            eventually(lambda: got == [b"before"], "the first message")
            caplog.clear()
            cluster.kill(0)
            time.sleep(3)
            away = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert [record.getMessage() for record in away if "trying again" not in record.getMessage()] == []
            assert len(away) == 1
            cluster.restart(0)
            with mqspark.Producer(cluster.namesrv, group="p", send_timeout_ms=60_000) as producer:
                eventually(lambda: "answers again" in caplog.text, "it is back")
                producer.send(mqspark.Message.of("T", b"after"))
            eventually(lambda: got[-1] == b"after", "the second message")
            lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(lines) == 2, lines
