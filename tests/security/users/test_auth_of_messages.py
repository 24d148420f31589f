"""Messages that a user reaches by key, position or waiting request, and letters that one forges, belong to a topic."""

from __future__ import annotations

import pytest

from mqspark.auth.policies import PolicyType
from mqspark.auth.users import UserStatus
from mqspark.message import decode_offset_id
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.record.batchitems import encode_items
from mqspark.record.record import decode_records
from tests.security.users.conftest import Guarded
from tests.unit.auth_kit import SignedPeer
from tests.unit.broker_kit import pull_ext, send_ext
from tests.unit.pop_kit import pass_time, pop_ext

R = RequestCode
DENIED = ResponseCode.NO_PERMISSION


# --- look-ups ---


def looked_up(peer: SignedPeer, topic: str, key: str) -> list[bytes]:
    ext = {"topic": topic, "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    answer = peer.ask(R.QUERY_MESSAGE, ext)
    return [each.body for each in decode_records(answer.body)] if answer.code == 0 else []


def test_a_key_of_the_same_hash_opens_no_other_topic(guarded: Guarded) -> None:
    guarded.topic("AaTopic", "BBTopic")
    guarded.send("BBTopic", properties="KEYS\x01Aa\x02UNIQ_KEY\x01AaAa\x02")
    reader = guarded.user("reader", "Topic:AaTopic Get,Sub")
    assert looked_up(guarded.root, "BBTopic", "Aa") == [b"secret of others"]
    for key in ("BB", "Aa", "BBBB", "AaBB"):
        assert looked_up(reader, "AaTopic", key) == []
    assert looked_up(guarded.root, "AaTopic", "BB") == []


@pytest.mark.parametrize(
    "waits", ["DELAY\x013\x02", "TIMER_DELAY_MS\x0160000\x02", "TRAN_MSG\x01true\x02PGROUP\x01P\x02"]
)
def test_a_waiting_message_is_for_readers_of_its_real_topic(guarded: Guarded, waits: str) -> None:
    guarded.topic("Own", "Other")
    flag = {"f": "4"} if "TRAN_MSG" in waits else {}
    positions = {}
    for topic in ("Own", "Other"):
        ext = send_ext(topic, properties=f"KEYS\x01k\x02{waits}", **flag)
        answer = guarded.root.ask(R.SEND_MESSAGE_V2, ext, topic.encode())
        assert answer.code == 0, answer.remark
        positions[topic] = int(decode_offset_id(answer.ext["msgId"])[2])
    stored = guarded.bench.store.reads.parts_at(positions["Own"])
    assert stored is not None
    assert stored.topic != "Own"
    operator = guarded.user("operator", "Cluster:C Get", "Topic:Own Sub")
    assert looked_up(guarded.root, stored.topic, "k") == [b"Own", b"Other"]
    assert looked_up(operator, stored.topic, "k") == [b"Own"]
    seen = {
        topic: operator.ask(R.VIEW_MESSAGE_BY_ID, {"offset": str(position)}).code
        for topic, position in positions.items()
    }
    assert seen == {"Own": 0, "Other": DENIED}
    assert looked_up(guarded.user("owner", "Topic:Own Sub"), stored.topic, "k") == []


# --- requests that wait ---


def _left(guarded: Guarded, how: str) -> None:
    users = guarded.one.users
    if how == "removed":
        users.remove("reader")
    elif how == "disabled":
        users.change("reader", None, None, UserStatus.DISABLE)
    elif how == "another secret":
        users.change("reader", "another-secret", None, None)
    else:
        users.remove_acl("reader", PolicyType.CUSTOM, None)


@pytest.mark.parametrize("how", ["removed", "disabled", "another secret", "no rights"])
@pytest.mark.parametrize("code", [R.PULL_MESSAGE, R.POP_MESSAGE, R.NOTIFICATION])
def test_what_waits_is_refused_once_its_user_has_lost_the_right(
    guarded: Guarded, code: int, how: str
) -> None:
    guarded.topic("T")
    guarded.group("CG")
    bench = guarded.bench
    reader = guarded.user("reader", "Topic:T Sub", "Group:CG Sub")
    stays = guarded.user("stays", "Topic:T Sub", "Group:CG Sub")
    waits = {"pollTime": "15000", "queueId": "0"}
    ext = pull_ext(sysFlag="6") if code == R.PULL_MESSAGE else pop_ext(bench, **waits)
    for each in (reader, stays):
        each.peer.give(code, each.signer.signed(ext, b""))
        bench.broker.turn()
        assert each.peer.heard() == []
    _left(guarded, how)
    guarded.send("T")
    while bench.broker.work():
        pass
    bench.broker.turn()
    if code == R.PULL_MESSAGE:
        (told,) = reader.peer.heard()
        assert (told.code, told.body) == (DENIED, b"")
        assert [each.code for each in stays.peer.heard()] == [0]
        return
    pass_time(bench, 20_000)
    (told,) = reader.peer.heard()
    assert (told.code, told.body) == (DENIED, b"")
    assert len(stays.peer.heard()) == 1


# --- dead letters ---


def letter(to: str, properties: str) -> dict[str, str]:
    return send_ext(to, properties=properties)


@pytest.mark.parametrize("code", [R.SEND_MESSAGE_V2, R.SEND_REPLY_MESSAGE_V2])
@pytest.mark.parametrize("name", ["DLQ_ORIGIN_TOPIC", "RETRY_TOPIC"])
def test_whoever_consumes_for_a_group_forges_no_retry_of_another_topic(
    guarded: Guarded, name: str, code: int
) -> None:
    guarded.topic("Own", "Secret")
    guarded.group("CG")
    consumer = guarded.user("consumer", "Group:CG Sub", "Topic:Own Sub")
    sent = {
        origin: consumer.ask(code, letter("%RETRY%CG", f"{name}\x01{origin}\x02"), b"x").code
        for origin in ("Own", "Secret", "%RETRY%Other", "SCHEDULE_TOPIC_XXXX")
    }
    own = sent.pop("Own")
    assert own == (0 if code == R.SEND_MESSAGE_V2 else ResponseCode.SYSTEM_ERROR), (
        "nobody waits for the reply"
    )
    assert set(sent.values()) == {DENIED}
    batch = encode_items([(0, b"x", f"{name}\x01Secret\x02".encode())])
    assert consumer.ask(R.SEND_BATCH_MESSAGE, send_ext("%RETRY%CG", m="true"), batch).code == DENIED


@pytest.mark.parametrize(
    "code",
    [R.SEND_MESSAGE, R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2],
)
@pytest.mark.parametrize("topic", ["%DLQ%CG", "%DLQ%Other"])
def test_only_brokers_write_dead_letters(guarded: Guarded, code: int, topic: str) -> None:
    """Brokers sign as a super user."""
    guarded.topic("Own")
    guarded.group("CG")
    consumer = guarded.user("consumer", "Group:CG All", "Topic:* All")
    ext, body = letter(topic, "RETRY_TOPIC\x01Own\x02"), b"x"
    if code in (R.SEND_MESSAGE, R.SEND_REPLY_MESSAGE):
        ext = {
            "producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
        }  # fmt: skip
    if code == R.SEND_BATCH_MESSAGE:
        ext, body = send_ext(topic, m="true"), encode_items([(0, b"x", b"")])
    assert consumer.ask(code, ext, body).code == DENIED
    half = {**letter(topic, "TRAN_MSG\x01true\x02PGROUP\x01P\x02"), "f": "4"}
    assert consumer.ask(R.SEND_MESSAGE_V2, half, b"x").code == DENIED
    assert guarded.root.ask(R.SEND_MESSAGE_V2, letter("%DLQ%CG", ""), b"x").code != DENIED


def test_a_broker_turns_a_retry_that_has_had_all_attempts_into_a_letter(guarded: Guarded) -> None:
    """So a client that cannot send a message back by its offset writes one, and so does a work queue of Spark."""
    guarded.topic("Own")
    guarded.group("CG")
    consumer = guarded.user("consumer", "Group:CG Sub", "Topic:Own Sub")
    properties = "RETRY_TOPIC\x01Own\x02DLQ_ORIGIN_TOPIC\x01Own\x02DLQ_ORIGIN_MESSAGE_ID\x01forged\x02"
    ext = {**letter("%RETRY%CG", properties), "j": "1", "l": "0"}
    assert consumer.ask(R.SEND_MESSAGE_V2, ext, b"x").code == 0
    (dead,) = guarded.bench.records("%DLQ%CG")
    assert dead.properties["RETRY_TOPIC"] == "Own"
    assert not {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"} & dead.properties.keys()
