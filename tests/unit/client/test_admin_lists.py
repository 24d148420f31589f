"""Long lists of a cluster are read by its tools part by part: whoever shares their loop is served between two."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from mqspark.client import admin as admin_module
from mqspark.client.admin import AdminClient, GroupOffset
from mqspark.client.remoting import longanswers
from mqspark.errors import BrokerError, IllegalName, ProtocolError
from mqspark.message import MessageQueue, no_such_topic
from mqspark.protocol.bodies import longtables
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import ConnectionInfo, ConsumerConnection, SubscriptionData
from mqspark.protocol.bodies.longtables import PART_BYTES
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicList,
)
from mqspark.protocol.codes import RequestCode

T = TypeVar("T")
ADDRESSES = {"b-a": "10.0.0.1:10911", "b-b": "10.0.0.2:10911"}


class Answered(AdminClient):
    """Each broker answers with its body."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = dict(zip(ADDRESSES.values(), bodies, strict=True))
        self.longest = self.turns = 0

    async def _masters(self, *which: object) -> dict[str, str]:
        return ADDRESSES

    async def _ask(self, address: str, code: int, *question: object, **more: object) -> Any:
        body = self.bodies[address]
        if code == RequestCode.GET_CONSUME_STATS and b"offsetTable" not in body:
            body = b"{}"
        return SimpleNamespace(body=memoryview(body))

    async def _namesrv_ask(self, *question: object) -> Any:
        return SimpleNamespace(body=memoryview(self.bodies[ADDRESSES["b-a"]]))

    def _started(self) -> Any:
        async def route(topic: str) -> Any:
            return SimpleNamespace(is_static=False)

        return SimpleNamespace(route=route)

    def run(self, asked: Coroutine[Any, Any, T], monkeypatch: pytest.MonkeyPatch) -> T:
        def watched(body_type: type[Any], text: bytes) -> Any:
            self.longest = max(self.longest, len(text))
            return decode_body(body_type, text)

        for module in (admin_module, longanswers, longtables):
            monkeypatch.setattr(module, "decode_body", watched)

        async def main() -> T:
            async def others() -> None:
                while True:
                    self.turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(others())
            try:
                return await asked
            finally:
                task.cancel()

        return asyncio.run(main())


def groups_body(first: int, last: int) -> bytes:
    table = {
        name: SubscriptionGroupConfig(group_name=name, retry_max_times=first)
        for name in (f"G{number:04d}" for number in range(last - 1, first - 1, -1))
    }
    return encode_body(SubscriptionGroupWrapper(table, {}, DataVersion(1, 2, 3)))


def test_groups_of_all_brokers_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Answered([groups_body(0, 1_500), groups_body(1_000, 2_000)])
    groups = admin.run(admin.groups(), monkeypatch)
    assert list(groups) == [f"G{number:04d}" for number in range(2_000)]
    assert [groups[name].retry_max_times for name in ("G0999", "G1000", "G1999")] == [0, 1_000, 1_000]
    assert admin.longest < 2 * PART_BYTES
    assert admin.turns > sum(map(len, admin.bodies.values())) // (2 * PART_BYTES)


def test_some_groups_and_the_names_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Answered([groups_body(0, 1_500), groups_body(1_000, 2_000)])
    some = admin.run(admin.groups(["G1999", "H", "G0007", "G1000"]), monkeypatch)
    assert {name: each.retry_max_times for name, each in some.items()} == {
        "G0007": 0, "G1000": 1_000, "G1999": 1_000
    }  # fmt: skip
    assert list(some) == sorted(some)
    assert admin.run(admin.group_names(), monkeypatch) == [f"G{number:04d}" for number in range(2_000)]
    assert admin.longest < 2 * PART_BYTES


def test_topics_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"T{number * 7_919 % 10_007:05d}" for number in range(5_000)]
    admin = Answered([encode_body(TopicList(topic_list=names)), b""])
    assert admin.run(admin.topic_list(), monkeypatch) == sorted(names)
    assert admin.longest < 2 * PART_BYTES
    assert admin.turns > 4


def test_progress_in_very_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues are keys, which RocketMQ writes bare."""
    table = {
        json.dumps({"brokerName": "b-a", "queueId": number, "topic": "T"}): {
            "brokerOffset": number, "consumerOffset": 7
        }
        for number in range(1_000)
    }  # fmt: skip
    text = re.sub(
        r'"(\{[^}]*\})":', lambda found: found[1].replace("\\", "") + ":", json.dumps({"offsetTable": table})
    )
    admin = Answered([text.encode(), b"{}"])
    found = admin.run(admin.group_offsets("G"), monkeypatch)
    assert found == {MessageQueue("T", "b-a", number): GroupOffset(7, number) for number in range(1_000)}
    assert admin.longest < 2 * PART_BYTES


@pytest.mark.parametrize(
    "body", [b"", b"no", b'{"subscriptionGroupTable":{"a":{"groupName":"x"', b'{"subscriptionGroupTable":7}']
)
def test_what_is_no_list_is_refused(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Answered([body, groups_body(0, 1)])
    with pytest.raises(ProtocolError):
        admin.run(admin.groups(), monkeypatch)


def test_illegal_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Answered([encode_body(TopicList(topic_list=["T", "a/../b"])), b""])
    with pytest.raises(IllegalName):
        admin.run(admin.topic_list(), monkeypatch)


def test_few_of_many_names_are_compared_with_one_that_does_not_exist() -> None:
    names = [f"Topic-{number:06d}" for number in range(5_000)]
    compared = longanswers.near(names, "Topic-0042x")
    assert len(compared) == longanswers.COMPARED
    assert {"Topic-004199", "Topic-004201", "Topic-004200"} < set(compared)
    assert "did you mean 'Topic-" in str(no_such_topic("Topic-0042x", compared))
    assert longanswers.near(names[:7], "Topic-9") == longanswers.near(names[:7], "A") == names[:7]


@pytest.mark.parametrize("group", ["G1999", "G0000", "H"])
def test_a_group_without_offsets_is_looked_for_in_the_lists(
    monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    admin = Answered([groups_body(0, 1_500), groups_body(1_000, 2_000)])

    async def nowhere(topic: str) -> None:
        raise no_such_topic(topic)

    monkeypatch.setattr(admin, "topic_route", nowhere)
    asked = admin.group_offsets(group)
    if group == "H":
        with pytest.raises(BrokerError, match="there is no consumer group 'H'"):
            admin.run(asked, monkeypatch)
    else:
        assert admin.run(asked, monkeypatch) == {}
    assert admin.longest < 2 * PART_BYTES


def test_many_members_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [ConnectionInfo(client_id=f"10.0.0.1@{number}") for number in range(1_000)]
    group = ConsumerConnection(connection_set=members, consume_type="CONSUME_PASSIVELY")
    answered = Answered([encode_body(group), b"{}"])
    assert answered.run(answered.group_members("G"), monkeypatch) == group
    assert 0 < answered.longest < 2 * PART_BYTES
    assert answered.turns >= 3


@pytest.mark.parametrize(
    "group",
    [
        ConsumerConnection(connection_set=[ConnectionInfo(client_id="c")] * 999 + [ConnectionInfo("a\nb")]),
        ConsumerConnection(subscription_table={"a/../b": SubscriptionData(topic="T")}),
    ],
)
def test_a_name_among_many_members_that_no_client_has_is_refused(
    group: ConsumerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = Answered([encode_body(group), b"{}"])
    with pytest.raises(IllegalName):
        answered.run(answered.group_members("G"), monkeypatch)
