"""Heartbeats, membership and its notices, consumer lists, queue locks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqspark.protocol.codes import Language, RequestCode, ResponseCode
from tests.support.remoting import heartbeat_body, subscription
from tests.unit.broker_kit import Bench, Peer

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP
NOTICE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def heartbeat(
    peer: Peer,
    client: str,
    *topics: str,
    group: str = "CG",
    producer: str | None = None,
    model: str = "CLUSTERING",
    subscriptions: list[dict[str, Any]] | None = None,
    **members: Any,
) -> dict[str, str]:
    wanted = subscriptions or [subscription(topic) for topic in topics]
    groups = {group: wanted} if wanted else {}
    producers = [producer] if producer else []
    body = heartbeat_body(client, groups, producers=producers, model=model, **members)
    # Notices to this very connection may come before the answer.
    opaque = peer.give(RequestCode.HEART_BEAT, {}, body)
    peer.core.turn()
    heard = peer.heard()
    answers = [command for command in heard if command.is_response]
    assert [(answer.opaque, answer.code) for answer in answers] == [(opaque, 0)]
    peer.notices = [command.ext["consumerGroup"] for command in heard if command.code == NOTICE]  # type: ignore[attr-defined]
    return answers[0].ext


def notices(peer: Peer) -> list[str]:
    heard = peer.heard()
    assert all(command.code == NOTICE and command.is_oneway for command in heard)
    return [command.ext["consumerGroup"] for command in heard]


def members(peer: Peer, group: str = "CG") -> list[str]:
    answer = peer.ask(LIST, {"consumerGroup": group})
    if answer.code == ResponseCode.SYSTEM_ERROR:
        return []
    return sorted(json.loads(answer.body)["consumerIdList"])


def test_a_heartbeat_registers_and_answers(bench: Bench, peer: Peer) -> None:
    assert heartbeat(peer, "c1", "T") == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert members(peer) == ["c1"]
    retry = bench.broker.state.topics.get("%RETRY%CG")
    assert retry is not None
    assert (retry.config.read_queue_nums, retry.config.perm) == (1, 6)
    assert bench.broker.publication.due  # tools look groups up by the route of their retry topic


def test_a_list_of_members_has_fields_although_none(bench: Bench, peer: Peer) -> None:
    """As RocketMQ answers, whose header for it is empty."""
    heartbeat(peer, "c1", "T")
    peer.give(LIST, {"consumerGroup": "CG"})
    bench.broker.turn()
    assert b'"extFields":{}' in b"".join(peer.session.take())


def test_the_list_of_an_unknown_group_is_an_error(bench: Bench) -> None:
    answer = bench.peer().ask(LIST, {"consumerGroup": "none"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_everybody_is_told_of_a_new_member(bench: Bench) -> None:
    first, second = bench.peer(), bench.peer()
    heartbeat(first, "c1", "T")
    assert first.notices == ["CG"]  # type: ignore[attr-defined]
    heartbeat(second, "c2", "T")
    assert second.notices == ["CG"]  # type: ignore[attr-defined]
    assert notices(first) == ["CG"]
    heartbeat(second, "c2", "T")  # nothing new
    assert notices(first) == []
    heartbeat(second, "c2", "T", "U")  # another topic
    assert notices(first) == ["CG"]
    heartbeat(
        second, "c2", subscriptions=[subscription("T", "A", 9), subscription("U")]
    )  # another expression only
    assert notices(first) == []


def wait(bench: Bench, seconds: int) -> None:
    for _ in range(seconds):
        bench.clock.advance(1_000)
        bench.broker.tick()


def test_time_in_which_the_broker_was_paused_is_no_silence_of_clients(bench: Bench) -> None:
    staying = bench.peer()
    heartbeat(staying, "s", "T")
    bench.clock.advance(600_000)
    bench.broker.tick()
    assert members(staying) == ["s"]
    wait(bench, 131)
    assert bench.broker.state.clients.consumer("CG") is None


def test_a_loop_that_is_late_again_and_again_forgets_clients_that_are_dead(bench: Bench) -> None:
    heartbeat(bench.peer(), "s", "T")
    for _ in range(13):
        wait(bench, 9)
        bench.clock.advance(1_500)
        bench.broker.tick()
    assert bench.broker.state.clients.consumer("CG") is not None
    wait(bench, 15)
    assert bench.broker.state.clients.consumer("CG") is None


def test_leaving_in_three_ways(bench: Bench) -> None:
    staying, a, b, c = (bench.peer() for _ in range(4))
    for peer, name in ((staying, "s"), (a, "a"), (b, "b"), (c, "c")):
        heartbeat(peer, name, "T")
    notices(staying)
    a.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "a", "consumerGroup": "CG"})
    assert notices(staying) == ["CG"]
    b.disconnect()
    assert notices(staying) == ["CG"]
    wait(bench, 110)
    heartbeat(staying, "s", "T")
    wait(bench, 21)  # c has been silent for 131 s
    assert notices(staying) == ["CG"]
    assert members(staying) == ["s"]
    staying.disconnect()
    assert bench.broker.state.clients.consumer("CG") is None


def test_nobody_is_told_in_broadcasting_or_when_the_group_does_not_want_it(bench: Bench) -> None:
    first, second = bench.peer(), bench.peer()
    heartbeat(first, "c1", "T", model="BROADCASTING")
    heartbeat(second, "c2", "T", model="BROADCASTING")
    assert notices(first) == []
    quiet = b'{"groupName":"Q","notifyConsumerIdsChangedEnable":false}'
    first.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, quiet)
    heartbeat(first, "c1", "T", group="Q")
    heartbeat(second, "c2", "T", group="Q")
    assert notices(first) == []


def test_a_client_that_comes_back_on_another_connection_is_one_member(bench: Bench) -> None:
    old, new = bench.peer(), bench.peer()
    heartbeat(old, "c1", "T")
    heartbeat(new, "c1", "T")
    old.disconnect()
    assert members(new) == ["c1"]


def test_a_newer_subscription_replaces_an_older_one_only(bench: Bench, peer: Peer) -> None:
    heartbeat(peer, "c1", subscriptions=[subscription("T", "A", 5)])
    heartbeat(peer, "c1", subscriptions=[subscription("T", "B", 4)])
    group = bench.broker.state.clients.consumer("CG")
    assert group is not None
    assert group.subscriptions["T"].data.sub_string == "A"
    heartbeat(peer, "c1", subscriptions=[subscription("T", "C", 6)])
    assert group.subscriptions["T"].data.sub_string == "C"
    heartbeat(peer, "c1", "U")
    assert list(group.subscriptions) == ["U"]


def test_unknown_groups_are_left_out_when_they_may_not_be_created(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_subscription_group=False)
    peer = bench.peer()
    heartbeat(peer, "c1", "T", producer="PG")
    assert members(peer) == []
    assert "%RETRY%CG" not in bench.broker.state.topics
    assert [m.client_id for m in bench.broker.state.clients.producer_members("PG")] == ["c1"]


def test_a_group_with_an_illegal_name_is_left_out(peer: Peer) -> None:
    heartbeat(peer, "c1", "T", group="no spaces")
    assert members(peer, "no spaces") == []


def test_the_second_version_of_heartbeats(bench: Bench, peer: Peer) -> None:
    assert heartbeat(peer, "c1", "T", heartbeatFingerprint=7)["IS_SUB_CHANGE"] == "true"
    assert heartbeat(peer, "c1", "T", heartbeatFingerprint=7)["IS_SUB_CHANGE"] == "false"
    bench.clock.advance(100_000)
    bare = {"subscriptions": [], "heartbeatFingerprint": 7, "withoutSub": True}
    body = {"clientID": "c1", "consumerDataSet": [{"groupName": "CG"}], **bare}
    assert peer.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode()).ext["IS_SUB_CHANGE"] == "false"
    bench.later(100_000)
    assert members(peer) == ["c1"]
    group = bench.broker.state.clients.consumer("CG")
    assert group is not None
    assert list(group.subscriptions) == ["T"]
    body["heartbeatFingerprint"] = 8
    assert peer.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode()).ext["IS_SUB_CHANGE"] == "true"
    stranger = {**body, "clientID": "c2"}
    assert peer.ask(RequestCode.HEART_BEAT, {}, json.dumps(stranger).encode()).ext["IS_SUB_CHANGE"] == "true"
    assert members(peer) == ["c1"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"clientID":""}', b'{"clientID":"c","consumerDataSet":7}']
)
def test_a_heartbeat_that_is_none(bench: Bench, body: bytes) -> None:
    answer = bench.peer().ask(RequestCode.HEART_BEAT, {}, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "CG"}),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "PG"}),
        (RequestCode.GET_ALL_PRODUCER_INFO, {}),
    ],
)
def test_connections_are_listed_in_slices(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: RequestCode, ext: dict[str, str]
) -> None:
    for number in range(10):
        heartbeat(bench.peer(), f"c{number}", "T", producer="PG")
    while bench.broker.work():  # notices
        pass
    monkeypatch.setattr("mqspark.broker.admin.connections.MEMBERS_AT_ONCE", 1)
    peer, slices = bench.peer(), 1
    peer.give(code, ext)
    while bench.broker.work():
        slices += 1
    assert slices >= 10
    (answer,) = (command for command in peer.heard() if command.is_response)
    assert bytes(answer.body).count(b'"c') >= 10


def test_connections_as_tools_see_them(peer: Peer) -> None:
    heartbeat(peer, "c1", "T", producer="PG")
    shown = json.loads(peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "CG"}).body)
    assert shown["connectionSet"] == [
        {"clientAddr": peer.session.peer, "clientId": "c1", "language": "JAVA", "version": 479}
    ]
    assert shown["subscriptionTable"]["T"]["subString"] == "*"
    assert (shown["consumeType"], shown["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    shown = json.loads(peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "PG"}).body)
    assert [c["clientId"] for c in shown["connectionSet"]] == ["c1"]
    everybody = json.loads(peer.ask(RequestCode.GET_ALL_PRODUCER_INFO).body)
    assert everybody["data"]["PG"][0]["remoteIP"] == f"/{peer.session.peer}"
    gone = {"consumerGroup": "none"}
    assert peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, gone).code == ResponseCode.CONSUMER_NOT_ONLINE
    gone = {"producerGroup": "none"}
    assert peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, gone).code == ResponseCode.SYSTEM_ERROR


def test_ordinals_of_the_old_clients(peer: Peer) -> None:
    body = {
        "clientID": "cpp",
        "consumerDataSet": [
            {
                "groupName": "CG",
                "consumeType": 1,
                "messageModel": 0,
                "consumeFromWhere": 4,
                "subscriptionDataSet": [subscription("T")],
            }
        ],
    }
    assert peer.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode(), language=Language.CPP).code == 0
    shown = json.loads(peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "CG"}).body)
    assert (shown["consumeType"], shown["messageModel"], shown["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY",
        "BROADCASTING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    assert shown["connectionSet"][0]["language"] == "CPP"


def test_client_configuration_is_checked(peer: Peer) -> None:

    def check(**data: str) -> int:
        body = {"clientId": "c", "group": "CG", "subscriptionData": {"topic": "T", **data}}
        return peer.ask(RequestCode.CHECK_CLIENT_CONFIG, None, json.dumps(body).encode()).code

    assert check(subString="A || B", expressionType="TAG") == 0
    assert check(subString="a > 1", expressionType="SQL92") == ResponseCode.SYSTEM_ERROR


# --- locks ---


def lock(peer: Peer, client: str, *queue_ids: int, group: str = "CG") -> list[int]:
    body = {
        "clientId": client,
        "consumerGroup": group,
        "mqSet": [{"brokerName": "b-a", "queueId": queue_id, "topic": "T"} for queue_id in queue_ids],
    }
    answer = peer.ask(RequestCode.LOCK_BATCH_MQ, None, json.dumps(body).encode())
    assert answer.code == 0
    return sorted(queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"])


def unlock(peer: Peer, client: str, *queue_ids: int) -> None:
    body = {
        "clientId": client,
        "consumerGroup": "CG",
        "mqSet": [{"brokerName": "b-a", "queueId": queue_id, "topic": "T"} for queue_id in queue_ids],
    }
    assert peer.ask(RequestCode.UNLOCK_BATCH_MQ, None, json.dumps(body).encode()).code == 0


def test_locks(bench: Bench, peer: Peer) -> None:
    assert lock(peer, "c1", 0, 1) == [0, 1]
    assert lock(peer, "c2", 1, 2) == [2]
    assert lock(peer, "c2", 0, group="Other") == [0]
    unlock(peer, "c2", 1)  # not its own
    assert lock(peer, "c2", 1) == []
    unlock(peer, "c1", 1)
    assert lock(peer, "c2", 1) == [1]
    bench.clock.advance(60_000)
    assert lock(peer, "c1", 0) == [0]  # renewed at the last moment
    bench.clock.advance(60_001)
    assert lock(peer, "c2", 0) == [0]  # expired
    bench.later(120_000)
    assert bench.broker.state.locks.ledger.entries == 0
