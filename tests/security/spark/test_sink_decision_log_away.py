"""Threat: the broker with the exactly-once sink's decisions is away at a restart. A query that takes its log for one
that was never made writes a decided batch again, and decides it in a second log on another broker."""

from __future__ import annotations

import threading

import pytest

from mqspark.client.blocking import BlockingClient
from mqspark.errors import NoRoute
from mqspark.message import SINK_DECISIONS_TOPIC
from mqspark.testing import Cluster
from pyspark_pymq.writing.exactlyonce import DecisionLog


def test_a_log_whose_broker_is_away_is_waited_for_and_never_made_again() -> None:
    with Cluster(2) as cluster:
        client = BlockingClient(cluster.namesrv)
        client.make_topic("T", cluster.addresses)
        assert DecisionLog(client, "query", "T").find(0) is None, "never made"
        DecisionLog(client, "query", "T").decide(0, [])
        (queue,) = client.route(SINK_DECISIONS_TOPIC).subscribe_queues
        holder = cluster.addresses.index(client.route(SINK_DECISIONS_TOPIC).master(queue.broker_name) or "")
        cluster.shut_down(holder)
        with pytest.raises(NoRoute):
            client.route(SINK_DECISIONS_TOPIC)

        impatient = BlockingClient(cluster.namesrv, retry_ms=300)
        for attempt in (DecisionLog.find, lambda log, batch: log.decide(batch, [])):
            with pytest.raises(NoRoute, match="the broker with the decision log is away"):
                attempt(DecisionLog(impatient, "query", "T"), 0)
        with pytest.raises(NoRoute):
            client.route(SINK_DECISIONS_TOPIC)

        restart = threading.Timer(1.0, cluster.restart, (holder,))
        restart.start()
        assert DecisionLog(client, "query", "T").find(0) == []
        restart.join()
        assert client.route(SINK_DECISIONS_TOPIC).subscribe_queues == [queue]
        impatient.close()
        client.close()
