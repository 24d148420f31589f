"""Who is let in, and to what: a broker and a name server with users, and peers that sign, do not sign, and lie.

Requests to which RocketMQ 5.5.0 does not look closely (``OPEN_THERE``) are each refused here for a user without rights,
and allowed with the right that they need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mqspark.auth.access import TABLE
from mqspark.auth.failures import ADDRESS_FAILURES, ADDRESS_REGAIN_MS, FAILURES, REGAIN_MS
from mqspark.auth.gate import Audited
from mqspark.message import TRANSACTION_COMMIT_TYPE, decode_offset_id, encode_offset_id
from mqspark.namesrv.config import NamesrvConfig
from mqspark.namesrv.namesrv import NameServer
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.session import CERTIFICATE_NAME, Session
from mqspark.protocol.signature import Signer
from tests.security.users.conftest import Guarded
from tests.support.clocks import ManualClock
from tests.support.invariants import validate
from tests.support.store_tools import complete
from tests.unit.auth_kit import ROOT, SECRET, SignedPeer, allow, authority
from tests.unit.broker_kit import Bench, Peer, pull_ext, send_ext

R = RequestCode
DENIED = ResponseCode.NO_PERMISSION


# --- who --------------------------------------------------------------------------------------------------------


def test_no_handler_is_reached_without_a_signature(guarded: Guarded) -> None:
    peer = guarded.bench.peer()
    for code in guarded.bench.broker.handlers:
        answer = peer.ask(code, {"topic": "T", "AccessKey": "root"})
        assert (answer.code, answer.remark) == (DENIED, "username cannot be null."), code


def test_unknown_disabled_and_wrong_look_the_same(guarded: Guarded) -> None:
    guarded.user("gone", "* All")
    guarded.root.ask(R.AUTH_UPDATE_USER, {"username": "gone"}, b'{"userStatus":"disable"}')
    guarded.topic("T")
    peer = guarded.bench.peer()
    answers = {
        (answer.code, answer.remark)
        for name, password in (("nobody", SECRET), ("gone", SECRET), ("root", "wrong"), ("root", ""))
        for answer in [SignedPeer(peer, name, password).ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x")]
    }
    assert answers == {(DENIED, "check signature failed.")}
    assert guarded.bench.store.offsets.max_offset("T", 0) == 0


def test_guesses_are_slowed_down_for_one_user_at_one_address(guarded: Guarded) -> None:
    guarded.topic("T")
    alice = guarded.user("alice", "Topic:T Pub")
    assert alice.ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x").code == 0

    def send(name: str, password: str, address: str = "127.0.0.1") -> str:
        peer = SignedPeer(guarded.bench.peer(address=address), name, password)
        return peer.ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x").remark or ""

    for name in ("alice", "nobody"):
        remarks = [send(name, f"guess-{number}") for number in range(FAILURES + 2)]
        assert remarks[:FAILURES] == ["check signature failed."] * FAILURES
        assert set(remarks[FAILURES:]) == {
            "too many wrong signatures of this user from this address, wait 6 s."
        }
    assert "too many" in send("alice", SECRET), "a right guess must not show"
    assert send("alice", SECRET, "10.0.0.9") == "", "elsewhere she is let in"
    assert alice.ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x").code == 0, "who is in stays in"
    guarded.clock.advance(REGAIN_MS)
    assert send("alice", SECRET) == ""
    assert guarded.one.gate.decisions["limited"] == 5


def test_one_address_guesses_for_many_users_no_faster(guarded: Guarded) -> None:
    """One password for each of many names, which no limit of a user meets."""
    guarded.topic("T")
    alice, bob = guarded.user("alice", "Topic:T Pub"), guarded.user("bob", "Topic:T Pub", address="10.0.0.9")
    send = (R.SEND_MESSAGE_V2, send_ext("T"), b"x")
    assert alice.ask(*send).code == 0

    def remark(name: str, secret: str, address: str = "127.0.0.1") -> str:
        return SignedPeer(guarded.bench.peer(address=address), name, secret).ask(*send).remark or ""

    for number in range(ADDRESS_FAILURES):
        assert remark(f"user{number}", "Spring2026") == "check signature failed."
    for name, secret in (("another", "Spring2026"), ("bob", SECRET)):
        assert "from this address, wait 1 s" in remark(name, secret)
    assert remark("alice", SECRET) == "", "who was let in from here before is"
    assert "check signature failed." in remark("alice", "wrong"), "and has ten failures of her own"
    assert bob.ask(*send).code == 0, "and so is everybody elsewhere"
    guarded.clock.advance(2 * ADDRESS_REGAIN_MS)
    assert remark("another", "Spring2026") == "check signature failed.", "ten a second"
    assert "from this address" in remark("another", "Spring2026")


def test_one_user_has_no_more_connections_than_its_share(guarded: Guarded) -> None:
    guarded.topic("T")
    alice = [guarded.user("alice", "Topic:T Pub")]
    alice += [SignedPeer(guarded.bench.peer(), "alice") for _ in range(3)]
    bob = guarded.user("bob", "Topic:T Pub")
    guarded.one.gate.max_connections = 3

    def send(who: SignedPeer) -> str:
        return who.ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x").remark or ""

    refused = "User:alice has 3 connections, which is maxConnectionsPerUser."
    for _ in range(2):
        assert [send(each) for each in alice] == ["", "", "", refused]
    assert send(bob) == "", "others have their own"
    assert [guarded.root.ask(R.GET_BROKER_CONFIG).code for _ in range(3)] == [0] * 3
    alice[0].peer.disconnect()
    assert send(alice[3]) == ""
    other = SignedPeer(alice[1].peer, "bob")
    assert send(other) == "", "a connection that changes its user is the new one's"
    late = SignedPeer(guarded.bench.peer(), "alice")
    assert send(late) == ""
    assert guarded.one.gate.decisions["limited"] == 2
    assert guarded.one.config.max_connections_per_user == 5_000


def test_one_user_makes_so_many_groups_over_whatever_connections(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_new_groups_per_user=5, new_authority=lambda: authority(tmp_path / "auth"))
    try:
        guarded = Guarded(bench, SignedPeer(bench.peer(), *ROOT), [], bench.clock)
        guarded.topic("T")

        def pulled(who: SignedPeer, group: str) -> bool:
            answer = who.ask(R.PULL_MESSAGE, pull_ext("T", consumerGroup=group))
            return "maxNewGroupsPerUser" not in (answer.remark or "")

        mallory = guarded.user("mallory", "Topic:T Sub", "Group:m* Sub")
        bob = guarded.user("bob", "Topic:T Sub", "Group:b* Sub")
        made = []
        for number in range(4):
            peer = SignedPeer(bench.peer(), "mallory")
            made += [pulled(peer, f"m{number}-{each}") for each in range(2)]
            peer.peer.disconnect()
        assert made == [True] * 5 + [False] * 3
        assert pulled(mallory, "m0-0"), "what is there is used on"
        assert pulled(bob, "b"), "others make their own"
        assert pulled(guarded.root, "operators")
        assert bench.broker.state.subscriptions.ledger.refused == 3
    finally:
        bench.close()


def test_a_trusted_certificate_is_its_names_user_if_that_is_wanted(tmp_path: Path) -> None:
    audited: list[Audited] = []
    for is_wanted in (False, True):
        folder = tmp_path / str(is_wanted)
        bench = Bench(
            folder,
            new_authority=lambda folder=folder, is_wanted=is_wanted: authority(  # type: ignore[misc]
                folder / "auth", audited, authenticate_by_certificate=is_wanted
            ),
        )
        try:
            guarded = Guarded(bench, SignedPeer(bench.peer(), *ROOT), audited, bench.clock)
            guarded.topic("T", "U")
            guarded.user("alice", "Topic:T Pub")
            peer = bench.peer()

            def send(peer: Peer, topic: str = "T") -> int:
                return peer.ask(R.SEND_MESSAGE_V2, send_ext(topic), b"x").code

            assert send(peer) == DENIED
            peer.session.attributes[CERTIFICATE_NAME] = "alice"
            assert send(peer) == (0 if is_wanted else DENIED)
            assert send(peer, "U") == DENIED, "policies are asked as for a signed request"
            if not is_wanted:
                continue
            assert (
                peer.ask(R.SEND_MESSAGE_V2, Signer("alice", "wrong").signed(send_ext("T")), b"x").code
                == DENIED
            )
            assert peer.ask(R.SEND_MESSAGE_V2, {**send_ext("T"), "AccessKey": "root"}, b"x").code == DENIED
            assert SignedPeer(peer, *ROOT).ask(R.SEND_MESSAGE_V2, send_ext("U"), b"x").code == 0
            assert send(peer, "U") == DENIED, "an unsigned request is the certificate's again"
            guarded.root.ask(R.AUTH_UPDATE_USER, {"username": "alice"}, b'{"userStatus":"disable"}')
            assert send(peer) == DENIED
            stranger = bench.peer()
            stranger.session.attributes[CERTIFICATE_NAME] = "nobody"
            assert send(stranger) == DENIED
            assert (audited[-1].user, audited[-1].allowed) == ("nobody", False)
        finally:
            bench.close()


def test_what_was_signed_is_what_is_done(guarded: Guarded) -> None:
    guarded.topic("T", "U")
    peer, signer = guarded.bench.peer(), Signer(*ROOT)
    signed = signer.signed(send_ext("T"), b"body")
    assert peer.ask(R.SEND_MESSAGE_V2, signed, b"body").code == 0
    for ext, body in (
        (signed, b"bodY"),
        ({**signed, "b": "U"}, b"body"),
        ({**signed, "extra": "1"}, b"body"),
        ({**signed, "Signature": ""}, b"body"),
        ({**signed, "Signature": signed["Signature"] + "A"}, b"body"),
        ({**signed, "Signature": "é\ud800".encode("utf-8", "replace").decode()}, b"body"),
    ):
        assert peer.ask(R.SEND_MESSAGE_V2, ext, body).code == DENIED


def test_a_connection_may_change_its_user_and_a_user_its_password(guarded: Guarded) -> None:
    guarded.topic("T")
    peer = guarded.bench.peer()
    guarded.user("alice", "Topic:T Pub")
    alice = SignedPeer(peer, "alice")
    assert alice.ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x").code == 0
    assert SignedPeer(peer, *ROOT).ask(R.GET_BROKER_CONFIG).code == 0
    assert alice.ask(R.GET_BROKER_CONFIG).code == DENIED
    guarded.root.ask(R.AUTH_UPDATE_USER, {"username": "alice"}, b'{"password":"new"}')
    assert alice.ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x").code == DENIED
    assert SignedPeer(peer, "alice", "new").ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x").code == 0
    guarded.root.ask(R.AUTH_DELETE_ACL, {"subject": "User:alice", "resource": "Topic:T"})
    assert SignedPeer(peer, "alice", "new").ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x").code == DENIED


def test_whitelists(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        new_authority=lambda: authority(
            tmp_path / "auth", authentication_whitelist="28,26", authorization_whitelist="28, 43"
        ),
    )
    try:
        nobody = bench.peer()
        assert nobody.ask(R.GET_BROKER_RUNTIME_INFO).code == 0
        assert nobody.ask(R.GET_BROKER_CONFIG).code == DENIED
        assert nobody.ask(R.GET_ALL_CONSUMER_OFFSET).code == DENIED
        allow(bench.broker.authority, "alice")  # type: ignore[arg-type]
        assert SignedPeer(nobody, "alice").ask(R.GET_ALL_CONSUMER_OFFSET).code == 0
    finally:
        bench.close()


def test_sources(guarded: Guarded) -> None:
    guarded.topic("T")
    inside = guarded.user("alice", "Topic:T Pub 10.0.0.0/8,fd00::/8".replace(",", " "), address="10.9.8.7")
    outside = SignedPeer(guarded.bench.peer(address="192.168.0.1"), "alice")
    six = SignedPeer(guarded.bench.peer(address="fd00::7"), "alice")
    send = (R.SEND_MESSAGE_V2, send_ext("T"), b"x")
    assert [peer.ask(*send).code for peer in (inside, outside, six)] == [0, DENIED, 0]


# --- what is open in RocketMQ 5.5.0 -----------------------------------------------------------------------------

_GROUP = json.dumps({"groupName": "G", "consumerGroup": "G", "topic": "T"}).encode()
_TOPICS = json.dumps({"topicConfigList": [{"topicName": "New"}]}).encode()
_ACKS = json.dumps({"brokerName": "b-a", "acks": [{"c": "G", "t": "T", "r": "0"}]}).encode()
_LITE_CLIENT = {"parentTopic": "T", "group": "G", "clientId": "c"}
_REPLY = send_ext("C_REPLY_TOPIC")
_OLD_REPLY = {
    "producerGroup": "p", "topic": "C_REPLY_TOPIC", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0",
}  # fmt: skip

OPEN_THERE: list[tuple[int, Mapping[str, str], bytes, tuple[str, ...]]] = [
    (R.UPDATE_AND_CREATE_TOPIC_LIST, {}, _TOPICS, ("Topic:New Create",)),
    (R.DELETE_TOPIC_IN_BROKER_LIST, {}, b'{"topicList": ["T", "U"]}', ("Topic:T Delete", "Topic:U Delete")),
    (R.DELETE_SUBSCRIPTION_GROUP_LIST, {}, b'{"groupNameList": ["G"]}', ("Group:G Delete",)),
    (R.GET_ALL_TOPIC_CONFIG, {}, b"", ("Cluster:C Get",)),
    (R.UPDATE_BROKER_CONFIG, {}, b"traceOn=false", ("Cluster:C Update",)),
    (R.GET_BROKER_CONFIG, {}, b"", ("Cluster:C Get",)),
    (R.GET_BROKER_RUNTIME_INFO, {}, b"", ("Cluster:C Get",)),
    (R.VIEW_MESSAGE_BY_ID, {"offset": "{position}"}, b"", ("Topic:T Get",)),
    (R.GET_ALL_CONSUMER_OFFSET, {}, b"", ("Cluster:C Get",)),
    (R.GET_ALL_DELAY_OFFSET, {}, b"", ("Cluster:C Get",)),
    (R.GET_TIMER_METRICS, {}, b"", ("Cluster:C Get",)),
    (R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, _GROUP, ("Group:G Create",)),
    (R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, b"", ("Cluster:C Get",)),
    (R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}, b"", ("Cluster:C Get",)),
    (R.CLEAN_EXPIRED_CONSUMEQUEUE, {}, b"", ("Cluster:C Update",)),
    (R.CLEAN_UNUSED_TOPIC, {}, b"", ("Cluster:C Update",)),
    (R.SEND_REPLY_MESSAGE, _OLD_REPLY, b"x", ("Topic:C_REPLY_TOPIC Pub",)),
    (R.SEND_REPLY_MESSAGE_V2, _REPLY, b"x", ("Topic:C_REPLY_TOPIC Pub",)),
    (R.DELETE_EXPIRED_COMMITLOG, {}, b"", ("Cluster:C Update",)),
    (R.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, {"topic": "T"}, b"", ("Cluster:C Get",)),
    (R.LITE_PULL_MESSAGE, pull_ext("T", consumerGroup="G"), b"", ("Topic:T Sub", "Group:G Sub")),
    (R.QUERY_ASSIGNMENT, {}, _GROUP, ("Topic:T Sub", "Group:G Sub")),
    (R.SET_MESSAGE_REQUEST_MODE, {}, _GROUP, ("Group:G Update",)),
    (R.GET_BROKER_HA_STATUS, {}, b"", ("Cluster:C Get",)),
    (R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"", ("Cluster:C Update",)),
    (R.SWITCH_TIMER_ENGINE, {"E_T": "F"}, b"", ("Cluster:C Update",)),
    (R.GET_PARENT_TOPIC_INFO, {"topic": "T"}, b"", ("Topic:T Get",)),
    (R.GET_LITE_TOPIC_INFO, {"parentTopic": "T", "liteTopic": "a"}, b"", ("Topic:T Get",)),
    (R.GET_LITE_CLIENT_INFO, _LITE_CLIENT, b"", ("Topic:T Get", "Group:G Get")),
    (R.GET_LITE_GROUP_INFO, {"group": "G"}, b"", ("Group:G Get",)),
    (R.TRIGGER_LITE_DISPATCH, {"group": "G", "clientId": "c"}, b"", ("Group:G Update",)),
    (R.BATCH_ACK_MESSAGE, {}, _ACKS, ("Topic:T Sub", "Group:G Sub")),
]


@pytest.mark.parametrize(
    ("code", "ext", "body", "rules"), OPEN_THERE, ids=[RequestCode(row[0]).name for row in OPEN_THERE]
)
def test_a_user_without_the_right_is_refused(
    guarded: Guarded, code: int, ext: Mapping[str, str], body: bytes, rules: tuple[str, ...]
) -> None:
    guarded.topic("T")
    guarded.group("G")
    position = guarded.send("T")
    ext = {name: value.replace("{position}", str(position)) for name, value in ext.items()}
    others = ("Topic:Mine All", "Group:Mine All", "Cluster:Other All")
    answer = guarded.user("mallory", *others).ask(code, ext, body)
    assert answer.code == DENIED
    assert "has no permission to access" in (answer.remark or "")
    assert answer.body == b""
    assert guarded.user("alice", *rules).ask(code, ext, body).code != DENIED
    for missing in rules:
        fewer = [rule for rule in rules if rule != missing]
        assert guarded.user(f"x{rules.index(missing)}", *fewer).ask(code, ext, body).code == DENIED


def test_a_foreign_message_is_not_sent_back_into_ones_own_retry_topic(guarded: Guarded) -> None:
    guarded.topic("T", "Mine")
    guarded.group("mine")
    mallory = guarded.user("mallory", "Group:mine Sub", "Topic:Mine All")
    for header_topic in ("Mine", "T"):
        ext = {
            "offset": str(guarded.send("T")),
            "group": "mine",
            "delayLevel": "0",
            "originTopic": header_topic,
        }
        assert mallory.ask(R.CONSUMER_SEND_MSG_BACK, ext).code == DENIED
    ext["offset"] = str(guarded.send("Mine"))
    assert mallory.ask(R.CONSUMER_SEND_MSG_BACK, ext).code == 0


def test_a_message_is_looked_up_by_its_own_topic_not_the_headers(guarded: Guarded) -> None:
    guarded.topic("T", "Mine")
    mallory = guarded.user("mallory", "Topic:Mine All")
    ext = {"offset": str(guarded.send("T")), "topic": "Mine"}
    answer = mallory.ask(R.VIEW_MESSAGE_BY_ID, ext)
    assert answer.code == DENIED
    assert b"secret" not in answer.body
    own = {"offset": str(guarded.send("Mine"))}
    assert mallory.ask(R.VIEW_MESSAGE_BY_ID, own).code == 0
    assert mallory.ask(R.VIEW_MESSAGE_BY_ID, {**own, "topic": "Mine"}).code == 0
    assert mallory.ask(R.VIEW_MESSAGE_BY_ID, {**own, "topic": "T"}).code == DENIED


def test_a_refusal_does_not_name_what_the_server_has_looked_up(guarded: Guarded) -> None:
    """Who asks for one offset after the other would learn the topics and groups of all messages."""
    guarded.topic("Hidden", "Mine")
    guarded.group("mine")
    position = guarded.send("Hidden")
    half = _half(guarded, "Hidden")
    mallory = guarded.user("mallory", "Topic:Mine All", "Group:mine All")
    message_id = encode_offset_id(bytes(8), position)
    back = {"group": "mine", "delayLevel": "0", "offset": str(position)}
    directly = {"consumerGroup": "mine", "clientId": "c", "topic": "Mine", "msgId": message_id}
    for code, header in (
        (R.VIEW_MESSAGE_BY_ID, {"offset": str(position)}),
        (R.CONSUMER_SEND_MSG_BACK, back),
        (R.CONSUME_MESSAGE_DIRECTLY, directly),
        (R.END_TRANSACTION, half),
        (R.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}),
    ):
        answer = mallory.ask(code, header)
        assert (answer.code, "Hidden" in (answer.remark or "")) == (DENIED, False), answer.remark
        assert guarded.audited[-1].resources == ("Topic:Hidden",)


def test_a_retry_topic_is_its_groups(guarded: Guarded) -> None:
    guarded.group("other", "mine", "mine_T")
    guarded.topic("T")
    position = guarded.send("T")
    ext = {"offset": str(position), "delayLevel": "0"}
    for group in ("other", "mine_T"):
        assert guarded.root.ask(R.CONSUMER_SEND_MSG_BACK, {**ext, "group": group}).code == 0
    mallory = guarded.user("mallory", "Topic:* All", "Group:mine All")
    for topic in ("%RETRY%other", "%RETRY%other+T", "%DLQ%other", "%RETRY%mine_T"):
        pull = pull_ext(topic, consumerGroup="mine")
        assert mallory.ask(R.PULL_MESSAGE, pull).code == DENIED, topic
        assert mallory.ask(R.SEND_MESSAGE_V2, send_ext(topic), b"x").code == DENIED, topic
        assert mallory.ask(R.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}).code == DENIED, topic
    assert mallory.ask(R.PULL_MESSAGE, pull_ext("%RETRY%mine", consumerGroup="mine")).code != DENIED
    assert mallory.ask(R.PULL_MESSAGE, pull_ext("%RETRY%mine_Other", consumerGroup="mine")).code != DENIED


def test_who_may_list_topics_or_groups_need_not_read_the_cluster(guarded: Guarded) -> None:
    """As in RocketMQ 5.5.1. A name or a prefix is not enough."""
    topics, groups = R.GET_ALL_TOPIC_CONFIG, R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    for name, policy, of_topics, of_groups in (
        ("lister", "Topic:* List", True, False),
        ("grouper", "Group:* List", False, True),
        ("reader", "Topic:* Get,Sub,Pub", False, False),
        ("prefixed", "Topic:a* List", False, False),
        ("viewer", "Cluster:* Get", True, True),
    ):
        user = guarded.user(name, policy)
        assert (user.ask(topics).code == 0, user.ask(groups).code == 0) == (of_topics, of_groups), policy
        assert (user.ask(R.GET_BROKER_RUNTIME_INFO).code == 0) == (name == "viewer")


def test_the_brokers_own_topics_are_the_clusters(guarded: Guarded) -> None:
    mallory = guarded.user("mallory", "Topic:* All", "Group:* All")
    for topic in (
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_REVIVE_LOG_C",
        "rmq_sys_wheel_timer",
    ):
        assert mallory.ask(R.PULL_MESSAGE, pull_ext(topic)).code == DENIED, topic
        ext = {"topic": topic, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        assert mallory.ask(R.QUERY_MESSAGE, ext).code == DENIED, topic


def _half(guarded: Guarded, topic: str) -> dict[str, str]:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1\x02"
    answer = guarded.root.ask(R.SEND_MESSAGE_V2, send_ext(topic, properties=properties, f="4"), b"half")
    assert answer.code == 0, answer.remark
    return {
        "producerGroup": "PG",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(decode_offset_id(answer.ext["msgId"])[2]),
        "commitOrRollback": str(TRANSACTION_COMMIT_TYPE),
        "msgId": "U1",
    }


def test_a_foreign_transaction_is_not_ended(guarded: Guarded) -> None:
    guarded.topic("T", "Mine")
    ext = _half(guarded, "T")
    mallory = guarded.user("mallory", "Topic:Mine All")
    for header in (ext, {**ext, "topic": "Mine"}):
        assert mallory.ask(R.END_TRANSACTION, header).code == DENIED
    assert guarded.bench.records("T") == []
    assert guarded.user("alice", "Topic:T Pub").ask(R.END_TRANSACTION, ext).code == 0
    assert len(guarded.bench.records("T")) == 1


def test_a_check_shows_a_half_message_only_to_who_may_write_its_topic(guarded: Guarded) -> None:
    guarded.topic("T")
    mallory, alice = guarded.user("mallory", "Topic:Mine All"), guarded.user("alice", "Topic:T Pub")
    for peer, client in ((mallory, "m"), (alice, "a")):
        body = {"clientID": client, "producerDataSet": [{"groupName": "PG"}]}
        assert peer.ask(R.HEART_BEAT, {}, json.dumps(body).encode()).code == 0
    _half(guarded, "T")
    guarded.bench.config.transaction_time_out = 1_000
    for _ in range(3):
        guarded.bench.run_for(61_000, step_ms=5_000)
    checks = {
        name: sum(command.code == R.CHECK_TRANSACTION_STATE for command in peer.peer.heard())
        for name, peer in (("mallory", mallory), ("alice", alice))
    }
    assert checks["mallory"] == 0
    assert checks["alice"] >= 2


def test_light_queues_are_topics_of_their_own(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        store_settings={"enable_lmq": True, "enable_multi_dispatch": True},
        new_authority=lambda: authority(tmp_path / "auth"),
    )
    try:
        one = bench.broker.authority
        assert one is not None
        guarded = Guarded(bench, SignedPeer(bench.peer(), *ROOT), [], bench.clock)
        guarded.topic("T")
        properties = "INNER_MULTI_DISPATCH\x01%LMQ%mine,%LMQ%other\x02"
        mallory = guarded.user("mallory", "Topic:T Pub", "Topic:%LMQ%mine Pub")
        assert mallory.ask(R.SEND_MESSAGE_V2, send_ext("T", properties=properties), b"x").code == DENIED
        body = b"\x00\x00\x00\x40INNER_MULTI_DISPATCH\x01%LMQ%other\x02"
        assert mallory.ask(R.SEND_BATCH_MESSAGE, send_ext("T", m="true"), body).code == DENIED
        mine = "INNER_MULTI_DISPATCH\x01%LMQ%mine\x02"
        assert mallory.ask(R.SEND_MESSAGE_V2, send_ext("T", properties=mine), b"x").code == 0
    finally:
        bench.close()


def test_a_heartbeat_and_locks_name_no_foreign_group(guarded: Guarded) -> None:
    guarded.group("other", "mine")
    guarded.topic("T")
    mallory = guarded.user("mallory", "Group:mine Sub", "Topic:T Sub")

    def beat(group: str, topic: str) -> int:
        data = [{"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}]
        body = json.dumps({"clientID": "m", "consumerDataSet": data}).encode()
        return mallory.ask(R.HEART_BEAT, {}, body).code

    def lock(group: str, topic: str) -> int:
        queues = [{"topic": topic, "brokerName": "b-a", "queueId": 0}]
        body = json.dumps({"consumerGroup": group, "clientId": "m", "mqSet": queues}).encode()
        return mallory.ask(R.LOCK_BATCH_MQ, {}, body).code

    for request in (beat, lock):
        assert request("other", "T") == DENIED
        assert request("mine", "Foreign") == DENIED
        assert request("mine", "%RETRY%other") == DENIED
        assert request("mine", "T") == 0
        assert request("mine", "%RETRY%mine") == 0


def test_positions_in_all_topics_are_not_cloned_with_the_right_to_one(guarded: Guarded) -> None:
    guarded.topic("T", "U")
    guarded.group("src", "dest")
    offsets = guarded.bench.broker.state.offsets
    for topic in ("T", "U"):
        offsets.commit("src", topic, 0, 7)
    rules = ("Group:src Get", "Group:dest Update")
    ext = {"srcGroup": "src", "destGroup": "dest", "topic": "", "offline": "true"}
    one = guarded.user("alice", *rules, "Topic:T Update")
    assert [one.ask(R.CLONE_GROUP_OFFSET, {**ext, "topic": topic}).code for topic in ("", "U", "T")] == [
        DENIED,
        DENIED,
        0,
    ]
    assert offsets.query("dest", "U", 0) < 0
    assert guarded.user("bob", *rules, "Topic:* Update").ask(R.CLONE_GROUP_OFFSET, ext).code == 0
    assert offsets.query("dest", "U", 0) == 7


def test_a_client_id_is_its_users(guarded: Guarded) -> None:
    """What a broker sends to a client under its id, as replies and half messages, must not reach another user."""
    guarded.group("g")
    alice, mallory = guarded.user("alice", "Group:g Sub"), guarded.user("mallory", "Group:g Sub")
    again = SignedPeer(guarded.bench.peer(), "alice")
    clients = guarded.bench.broker.state.clients

    def beat(who: SignedPeer, *, producer: str = "", consumer: str = "") -> int:
        body: dict[str, Any] = {"clientID": "10.0.0.1@7"}
        body["producerDataSet"] = [{"groupName": producer}] if producer else []
        body["consumerDataSet"] = [{"groupName": consumer, "subscriptionDataSet": []}] if consumer else []
        return who.ask(R.HEART_BEAT, {}, json.dumps(body).encode()).code

    def leave(who: SignedPeer, producer: str) -> int:
        return who.ask(R.UNREGISTER_CLIENT, {"clientID": "10.0.0.1@7", "producerGroup": producer}).code

    queue = {"topic": "%RETRY%g", "brokerName": "b-a", "queueId": 0}
    locked = json.dumps({"consumerGroup": "g", "clientId": "10.0.0.1@7", "mqSet": [queue]}).encode()
    assert beat(alice, producer="pa") == 0
    for attempt in ({"producer": "pa"}, {"producer": "other"}, {"consumer": "g"}):
        assert beat(mallory, **attempt) == DENIED
    assert leave(mallory, "pa") == DENIED
    for code in (R.LOCK_BATCH_MQ, R.UNLOCK_BATCH_MQ):
        assert mallory.ask(code, {}, locked).code == DENIED
        assert alice.ask(code, {}, locked).code == 0
    assert clients.producer_session("10.0.0.1@7") is alice.peer.session
    assert beat(again, producer="pa", consumer="g") == 0, "the same user comes back on another connection"
    assert clients.producer_session("10.0.0.1@7") is again.peer.session
    validate(clients)
    again.peer.disconnect()
    alice.peer.disconnect()
    while guarded.bench.broker.work():
        pass
    assert clients.producer_session("10.0.0.1@7") is None
    assert beat(mallory, producer="pa") == 0, "nobody is there any longer"
    assert leave(mallory, "pa") == 0
    validate(clients)


def test_authentication_cannot_be_switched_off_by_a_request(guarded: Guarded) -> None:
    for line in (
        b"authenticationEnabled=false",
        b"authorizationEnabled=false",
        b"authConfigPath=/tmp",
        b"allowAnonymous=true",
    ):
        assert guarded.root.ask(R.UPDATE_BROKER_CONFIG, {}, line).code != 0
    assert guarded.bench.peer().ask(R.GET_BROKER_CONFIG).code == DENIED


def test_no_answer_shows_a_password(guarded: Guarded) -> None:
    guarded.user("alice", "Cluster:C Get,List")
    reader = SignedPeer(guarded.bench.peer(), "alice")
    bodies = [
        peer.ask(code, ext).body
        for peer in (guarded.root, reader)
        for code, ext in (
            (R.AUTH_GET_USER, {"username": "root"}),
            (R.AUTH_LIST_USER, {}),
            (R.GET_BROKER_CONFIG, {}),
            (R.GET_BROKER_RUNTIME_INFO, {}),
        )
    ]
    assert all(bodies)
    assert not any(ROOT[1].encode() in bytes(body) for body in bodies)
    assert b"password" not in bytes(reader.ask(R.AUTH_LIST_USER, {}).body)


def test_only_a_super_user_manages_users_and_policies(guarded: Guarded) -> None:
    almost = guarded.user("almost", "* All")
    acl = b'{"policies":[{"policyType":"Custom","entries":[{"resource":"*","actions":["All"],"decision":"Allow"}]}]}'
    for code, ext, body in (
        (R.AUTH_CREATE_USER, {"username": "x"}, b'{"password":"x"}'),
        (R.AUTH_UPDATE_USER, {"username": "root"}, b'{"password":"x"}'),
        (R.AUTH_DELETE_USER, {"username": "root"}, b""),
        (R.AUTH_CREATE_ACL, {"subject": "User:almost"}, acl),
        (R.AUTH_UPDATE_ACL, {"subject": "User:almost"}, acl),
        (R.AUTH_DELETE_ACL, {"subject": "User:almost"}, b""),
    ):
        answer = almost.ask(code, ext, body)
        assert (answer.code, answer.remark) == (DENIED, "only a super user may do that")


def test_requests_to_clients_are_for_nobody(guarded: Guarded) -> None:
    for code, row in TABLE.items():
        if row.to_client and code in guarded.bench.broker.handlers:
            assert guarded.root.ask(code, {}).code == DENIED, code


def test_decisions_are_told(guarded: Guarded) -> None:
    guarded.topic("T")
    mallory = guarded.user("mallory", "Topic:Mine All")
    guarded.audited.clear()
    mallory.ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x")
    (told,) = guarded.audited
    assert (told.user, told.code, told.resources, told.allowed) == ("mallory", 310, ("Topic:T",), False)
    gate = guarded.one.gate
    assert gate.decisions["forbidden"] == 1
    guarded.audited.clear()
    alice = guarded.user("alice", "Topic:T Pub")
    for _ in range(3):
        assert alice.ask(R.SEND_MESSAGE_V2, send_ext("T"), b"x").code == 0
    assert [(told.user, told.allowed, told.changes) for told in guarded.audited] == [("alice", True, False)]


def test_decisions_of_a_connection_are_bounded(guarded: Guarded) -> None:
    from mqspark.auth.gate import MAX_DECISIONS

    alice = guarded.user("alice", "Topic:* All")
    for number in range(MAX_DECISIONS + 10):
        alice.ask(R.GET_MAX_OFFSET, {"topic": f"t{number}", "queueId": "0"})
    known: Any = alice.peer.session.attributes["auth"]
    assert len(known.allowed) <= MAX_DECISIONS


def test_a_gate_costs_nothing_where_there_is_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        assert bench.broker.handlers[R.SEND_MESSAGE_V2].__name__ == "send"
    finally:
        bench.close()


# --- name server --------------------------------------------------------------------------------------------------


def test_a_name_server_believes_only_its_users(tmp_path: Path) -> None:
    outbox: list[Session] = []
    one = authority(tmp_path)
    core = NameServer(NamesrvConfig(), ManualClock(), outbox=outbox, authority=one)
    count = iter(range(1, 100))

    def peer() -> Peer:
        number = next(count)
        return Peer(core, Session(number, "127.0.0.1", 40_000 + number, outbox))

    nobody, root = peer(), SignedPeer(peer(), *ROOT)
    for code in core.handlers:
        assert nobody.ask(code, {"topic": "T"}).code == DENIED, code
    allow(one, "broker-c", "Cluster:C Update,Get")
    allow(one, "client", "Topic:T Sub")
    broker, client = SignedPeer(peer(), "broker-c"), SignedPeer(peer(), "client")

    def register(who: SignedPeer, cluster: str, name: str) -> int:
        ext = {
            "brokerName": name,
            "brokerAddr": "10.0.0.1:10911" if name == "b-a" else "10.0.0.2:10911",
            "clusterName": cluster,
            "haServerAddr": "10.0.0.1:10912",
            "brokerId": "0",
        }
        body = {
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": 1, "timestamp": 1},
                "topicConfigTable": {"T": {"topicName": "T"}, "Other": {"topicName": "Other"}},
            }
        }
        return who.ask(R.REGISTER_BROKER, ext, json.dumps(body).encode()).code

    assert register(client, "C", "b-a") == DENIED
    assert register(broker, "Other", "b-a") == DENIED
    assert register(broker, "C", "b-a") == 0
    assert register(root, "D", "b-d") == 0
    assert register(broker, "C", "b-d") == DENIED, "a broker of another cluster"
    assert client.ask(R.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == 0
    assert client.ask(R.GET_ROUTEINFO_BY_TOPIC, {"topic": "Other"}).code == DENIED
    assert client.ask(R.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).code == ResponseCode.TOPIC_NOT_EXIST
    for code, ext in (
        (
            R.UNREGISTER_BROKER,
            {"brokerName": "b-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"},
        ),
        (R.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b-a"}),
        (R.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
        (R.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"}),
        (R.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}),
        (R.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}),
        (R.GET_NAMESRV_CONFIG, {}),
        (R.UPDATE_NAMESRV_CONFIG, {}),
        (R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (R.GET_BROKER_CLUSTER_INFO, {}),
    ):
        assert client.ask(code, ext).code == DENIED, code
    assert client.ask(R.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == 0
    created = root.peer.give(
        R.AUTH_CREATE_USER, root.signer.signed({"username": "late"}, b'{"password":"x"}'), b'{"password":"x"}'
    )
    assert root.peer.heard() == [], "not before it is on disk"
    complete(core.jobs())
    assert [(answer.opaque, answer.code) for answer in root.peer.heard()] == [(created, 0)]
    assert authority(tmp_path).users.find("late") is not None
