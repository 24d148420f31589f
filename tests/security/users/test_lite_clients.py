"""Lite topics and the client ids of others: who subscribes, unsubscribes or pops under an id that is not theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mqspark.protocol.codes import RequestCode as R
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from tests.support.invariants import validate
from tests.support.remoting import topic_fields
from tests.unit.auth_kit import ROOT, SignedPeer, allow, authority
from tests.unit.broker_kit import Bench, send_ext

DENIED, NOTHING = ResponseCode.NO_PERMISSION, ResponseCode.POLLING_TIMEOUT


class Lite(NamedTuple):
    bench: Bench
    root: SignedPeer
    alice: SignedPeer
    mallory: SignedPeer

    def entry(self, who: SignedPeer, action: str, group: str, topic: str, *names: str) -> Command:
        """A change of the subscriptions of the client id ``alices``."""
        entry = {
            "action": action, "clientId": "alices", "group": group, "topic": topic, "liteTopicSet": list(names),
        }  # fmt: skip
        return who.ask(R.LITE_SUBSCRIPTION_CTL, {}, json.dumps({"subscriptionSet": [entry]}).encode())

    def pop_ext(self, group: str, topic: str, poll_ms: int = 0) -> dict[str, str]:
        return {
            "clientId": "alices", "consumerGroup": group, "topic": topic, "maxMsgNum": "32", "pollTime": str(poll_ms),
            "invisibleTime": "30000", "bornTime": str(self.bench.clock.now_ms()),
        }  # fmt: skip

    def pop(self, who: SignedPeer, group: str, topic: str) -> Command:
        return who.ask(R.POP_LITE_MESSAGE, self.pop_ext(group, topic))

    def park(self, who: SignedPeer, group: str, topic: str) -> None:
        who.peer.give(R.POP_LITE_MESSAGE, who.signer.signed(self.pop_ext(group, topic, 15_000), b""))
        who.peer.core.turn()
        assert who.peer.heard() == []

    def send(self, topic: str) -> None:
        ext = send_ext(topic, properties="__LITE_TOPIC\x01l\x02WAIT\x01true\x02")
        assert self.root.ask(R.SEND_MESSAGE_V2, ext, b"of alice").code == 0


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Lite]:
    bench = Bench(
        tmp_path,
        new_authority=lambda: authority(tmp_path / "auth"),
        store_settings={"enable_lmq": True, "enable_multi_dispatch": True},
    )
    root = SignedPeer(bench.peer(), *ROOT)
    for topic, group in (("PA", "GA"), ("PM", "GM")):
        ext = topic_fields(topic, attributes="+message.type=LITE")
        assert root.ask(R.UPDATE_AND_CREATE_TOPIC, ext).code == 0
        attributes = {"+lite.bind.topic": topic, "+lite.sub.reset.offset.unsubscribe": "true"}
        body = json.dumps({"groupName": group, "attributes": attributes}).encode()
        assert root.ask(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
    assert bench.broker.authority is not None
    peers = []
    for name, letter in (("alice", "A"), ("mallory", "M")):
        allow(bench.broker.authority, name, f"Topic:P{letter} Sub", f"Group:G{letter} Sub")
        peers.append(SignedPeer(bench.peer(), name))
    yield Lite(bench, root, *peers)
    validate(bench.broker)


def test_messages_of_another_topic_are_not_popped_under_the_id_of_its_client(lite: Lite) -> None:
    assert lite.entry(lite.alice, "PARTIAL_ADD", "GA", "PA", "l").code == 0
    lite.send("PA")
    stolen = lite.pop(lite.mallory, "GM", "PM")
    assert (stolen.code, len(stolen.body)) == (DENIED, 0)
    assert lite.pop(lite.alice, "GA", "PA").code == 0, "the news is still hers"


def test_nor_when_its_connection_has_ended(lite: Lite) -> None:
    assert lite.entry(lite.alice, "PARTIAL_ADD", "GA", "PA", "l").code == 0
    lite.send("PA")
    lite.alice.peer.disconnect()
    stolen = lite.pop(lite.mallory, "GM", "PM")
    assert (stolen.code, len(stolen.body)) == (NOTHING, 0)
    assert lite.entry(lite.mallory, "PARTIAL_ADD", "GM", "PM", "l").code == ResponseCode.ILLEGAL_OPERATION
    back = SignedPeer(lite.bench.peer(), "alice")
    assert lite.pop(back, "GA", "PA").code == 0


@pytest.mark.parametrize("action", ["PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE"])
@pytest.mark.parametrize("is_connected", [True, False])
def test_subscriptions_of_another_users_client_stay(lite: Lite, action: str, is_connected: bool) -> None:
    assert lite.entry(lite.alice, "PARTIAL_ADD", "GA", "PA", "l").code == 0
    if not is_connected:
        lite.alice.peer.disconnect()
    answer = lite.entry(lite.mallory, action, "GM", "PM", "l", "more")
    expected = {DENIED} if is_connected else {0, ResponseCode.ILLEGAL_OPERATION}
    assert answer.code in expected, answer.remark
    lite.send("PA")
    alice = lite.alice if is_connected else SignedPeer(lite.bench.peer(), "alice")
    assert lite.pop(alice, "GA", "PA").code == 0


def test_a_lite_topic_of_ones_own_names_no_queue_of_others(lite: Lite) -> None:
    """What a message enters by its lite topic is not judged by policies: it is below the topic that is sent to."""
    assert lite.bench.broker.authority is not None
    allow(lite.bench.broker.authority, "writer", "Topic:PM Pub")
    writer = SignedPeer(lite.bench.peer(), "writer")
    for name in ("x,%LMQ%$PA$l", "%LMQ%$PA$l", "a$l", "../l", "a,b", "l "):
        ext = send_ext("PM", properties=f"__LITE_TOPIC\x01{name}\x02")
        answer = writer.ask(R.SEND_MESSAGE_V2, ext, b"forged")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, name
    assert lite.bench.store.offsets.max_offset("%LMQ%$PA$l", 0) == 0
    ext = send_ext("PM", properties="__LITE_TOPIC\x01l\x02")
    assert writer.ask(R.SEND_MESSAGE_V2, ext, b"mine").code == 0
    assert lite.bench.store.offsets.max_offset("%LMQ%$PM$l", 0) == 1


def test_a_group_of_ones_own_that_is_bound_to_anothers_topic_shows_nothing_of_it(lite: Lite) -> None:
    """Any name of a topic may be bound, and RocketMQ tells by its lag whether there is such a lite topic."""
    assert lite.bench.broker.authority is not None
    allow(lite.bench.broker.authority, "maker", "Group:GX All")
    maker = SignedPeer(lite.bench.peer(), "maker")
    body = json.dumps({"groupName": "GX", "attributes": {"+lite.bind.topic": "PA"}}).encode()
    assert maker.ask(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
    lite.send("PA")
    for name in ("l", "no such", ""):
        asked = {"group": "GX", "liteTopic": name, "topK": "5"}
        assert maker.ask(R.GET_LITE_GROUP_INFO, asked).code == DENIED
        assert lite.root.ask(R.GET_LITE_GROUP_INFO, asked).code == 0


def test_a_reader_writes_no_light_queue_by_sending_back(lite: Lite) -> None:
    assert lite.bench.broker.authority is not None
    allow(lite.bench.broker.authority, "reader", "Topic:PA Sub", "Group:GA Sub")
    lite.send("PA")
    position = lite.bench.store.log.min_offset
    ext = {"offset": str(position), "group": "GA", "delayLevel": "-1", "maxReconsumeTimes": "0"}
    assert SignedPeer(lite.bench.peer(), "reader").ask(R.CONSUMER_SEND_MSG_BACK, ext).code == 0
    assert lite.bench.store.offsets.max_offset("%DLQ%GA", 0) == 1
    assert lite.bench.store.offsets.max_offset("%LMQ%$PA$l", 0) == 1


def test_a_pop_that_was_parked_under_an_id_before_its_client_came_is_in_nobodys_way(lite: Lite) -> None:
    lite.park(lite.mallory, "GM", "PM")
    assert lite.entry(lite.alice, "PARTIAL_ADD", "GA", "PA", "l").code == 0
    lite.park(lite.alice, "GA", "PA")
    lite.send("PA")
    while lite.bench.broker.work():
        pass
    assert [answer.code for answer in lite.alice.peer.heard() if answer.is_response] == [0]
    assert lite.mallory.peer.heard() == []
