"""Our brokers under our controller: who is master changes, and nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqspark import Message, SendStatus
from mqspark.errors import ConfigError
from mqspark.testing import Clients, Cluster, FakeClock


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replication": "raft"}, "replication='raft' is not 'controller'"),
        ({"replication": "controller", "slaves": 1}, "leave out slaves=1"),
        ({"replication": "controller", "brokers": 1}, "two brokers or more"),
        ({"replication": "controller", "clock": FakeClock()}, "leave out the clock"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Cluster(**{"brokers": 3, **changes})


def test_a_cluster_of_replicas_has_one_master_and_all_are_in_sync(tmp_path: Path) -> None:
    with Cluster(brokers=3, replication="controller", store=tmp_path) as cluster:
        assert cluster.master == 0
        assert cluster.sync_state_set == {0, 1, 2}
        with Clients(cluster.namesrv) as clients:
            topic = clients.topic(queues=1)
            assert clients.producer().send(Message(topic, b"one")).status is SendStatus.SEND_OK
            consumer = clients.lite_pull_consumer(topic)
            assert [message.body for message in consumer.poll(timeout_ms=30_000)] == [b"one"]
        with pytest.raises(ValueError, match="does not grow"):
            cluster.add_broker()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["controller", "dev-0", "dev-1", "dev-2"]
