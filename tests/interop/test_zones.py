"""Zones: RocketMQ's name server and ours answer the same, and each knows the zones of brokers of both kinds."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from mqspark.client.blocking import BlockingClient
from mqspark.protocol import fastjson
from mqspark.protocol.codes import RequestCode
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.support.clusters import brokers_known_to, mqspark_broker, mqspark_namesrv
from tests.support.waiting import eventually

NAMES = {"brokerClusterName": "Zones"}
TOPIC = "TBW102"


def brokers_in(namesrv: str, **fields: str) -> tuple[list[str], list[str]]:
    """The brokers of a route, and those of its queues."""
    client = BlockingClient(namesrv)
    try:
        answer = client.request(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC, **fields})
    finally:
        client.close()
    route = fastjson.loads(bytes(answer.body))
    return tuple(sorted(each["brokerName"] for each in route[key]) for key in ("brokerDatas", "queueDatas"))


@pytest.mark.slow(
    "a RocketMQ name server and broker start; fast: test_a_client_in_zone_mode_uses_the_brokers_of_its_zone"
)
def test_both_name_servers_know_the_zones_of_both_kinds_of_brokers(
    jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as running:
        theirs = running.enter_context(rocketmq_namesrv(jars, tmp_path / "theirs"))
        ours = running.enter_context(mqspark_namesrv(tmp_path / "ours"))
        both = f"{ours};{theirs}"
        for name, zone in (("java", "East"), ("python", "west")):
            monkeypatch.setenv("ROCKETMQ_ZONE", zone)
            values = {**NAMES, "brokerName": name, "autoCreateTopicEnable": True, "namesrvAddr": both}
            if name == "java":
                running.enter_context(rocketmq_broker(jars, tmp_path / name, ours, settings=values))
            else:
                running.enter_context(mqspark_broker(tmp_path / name, ours, values))
        eventually(
            lambda: brokers_known_to(theirs).keys() == {"java", "python"},
            "both brokers at RocketMQ's name server",
        )
        del os.environ["ROCKETMQ_ZONE"]
        everyone = ["java", "python"]
        for fields, expected in (
            ({}, everyone),
            ({"__ZONE_NAME": "east"}, everyone),
            ({"__ZONE_MODE": "true"}, everyone),
            ({"__ZONE_MODE": "true", "__ZONE_NAME": " "}, everyone),
            ({"__ZONE_MODE": "yes", "__ZONE_NAME": "east"}, everyone),
            ({"__ZONE_MODE": "TRUE", "__ZONE_NAME": "EAST"}, ["java"]),
            ({"__ZONE_MODE": "true", "__ZONE_NAME": "west"}, ["python"]),
            ({"__ZONE_MODE": "true", "__ZONE_NAME": "north"}, []),
        ):
            found = [brokers_in(namesrv, **fields) for namesrv in (ours, theirs)]
            assert found == [(expected, expected)] * 2, fields
