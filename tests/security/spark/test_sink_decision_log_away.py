"""Threats: a note of another cluster's decision log, for which every task of the exactly-once sink would wait; and the
broker with the sink's decisions is away at a restart: a query that takes its log for one that was never made writes a
decided batch again, and decides it in a second log on another broker."""

from __future__ import annotations

import json
import threading
import time

import pytest

from mqspark.client.blocking import BlockingClient
from mqspark.errors import NoRoute
from mqspark.message import SINK_DECISIONS_TOPIC
from mqspark.testing import Broker, Cluster
from pyspark_pymq.options import WriteOptions
from pyspark_pymq.writing.decisionlog import DecisionLog
from pyspark_pymq.writing.decisionnote import NAMESPACE
from pyspark_pymq.writing.exactlyonce import check


@pytest.mark.parametrize("note", ["dev", json.dumps({"broker": "dev", "stores": ["0" * 32]})])
def test_the_note_of_another_clusters_log_holds_nobody_up(note: str) -> None:
    """A table of a name server may outlive its cluster."""
    with Broker() as broker:
        client = BlockingClient(broker.namesrv, retry_ms=300_000)
        client.make_topic("T", [broker.address])
        client.note(NAMESPACE, SINK_DECISIONS_TOPIC, note)
        begun = time.monotonic()
        assert DecisionLog(client, "query", "T").find(0) is None
        DecisionLog(client, "query", "T").decide(0, [])
        assert DecisionLog(client, "query", "T").find(0) == []
        assert time.monotonic() - begun < 60
        client.close()


def test_a_log_whose_broker_is_away_is_waited_for_and_never_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
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

        given = {"nameserver": cluster.namesrv, "topic": "T", "deliveryGuarantee": "exactly-once"}
        check(WriteOptions.parse(given))
        assert (
            f"waiting for broker {queue.broker_name} (retryTimeout): it has the decision log" in caplog.text
        )

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
