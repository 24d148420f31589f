"""Our name server and broker show the settings that RocketMQ's do."""

import json
from pathlib import Path

from mqspark import AdminClient
from tests.support.clusters import Cluster

KEYS: dict[str, list[str]] = json.loads(Path("tests/golden/vectors/config_keys.json").read_text())


def test_the_keys_that_are_shown(cluster: Cluster) -> None:
    with AdminClient(cluster.namesrv) as admin:
        of_broker = admin.broker_config(cluster.broker)
        of_namesrv = admin.namesrv_config(cluster.namesrv)
    missing = set(KEYS["broker"]) - of_broker.keys(), set(KEYS["namesrv"]) - of_namesrv.keys()
    assert missing == (set(), set())
    if cluster.kind == "rocketmq":
        assert (sorted(of_broker), sorted(of_namesrv)) == (KEYS["broker"], KEYS["namesrv"])
    assert of_broker["brokerName"] == cluster.broker_name
    assert of_namesrv["listenPort"] == cluster.namesrv.rpartition(":")[2]
