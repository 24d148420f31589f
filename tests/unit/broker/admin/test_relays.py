"""What the broker asks live consumers for: to whom a request goes, what becomes of the answer, and of none."""

import struct
from pathlib import Path

from mqspark.broker.admin.relays import MEMBERS_AT_ONCE
from mqspark.broker.state.calls import MAX_CALLS
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.admin_bodies import (
    GetConsumerStatusBody,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from mqspark.protocol.bodies.body import decode_body, encode_body, queue_key
from mqspark.protocol.bodies.client_bodies import ConsumerData, HeartbeatData, SubscriptionData
from mqspark.protocol.codes import Language, RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.headers.client_headers import ResetOffsetRequestHeader
from mqspark.record.record import decode_record
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

INFO = {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "true"}


def consumer(bench: Bench, client_id: str = "c1", group: str = "CG", **more: int) -> Peer:
    peer = bench.peer()
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=[
            ConsumerData(
                group_name=group,
                consume_type="CONSUME_PASSIVELY",
                message_model="CLUSTERING",
                consume_from_where="CONSUME_FROM_LAST_OFFSET",
                subscription_data_set=[SubscriptionData(topic="T", sub_string="*", sub_version=1)],
            )
        ],
    )
    peer.ask(RequestCode.HEART_BEAT, None, encode_body(data), **more)
    return peer


def asked(peer: Peer, code: int) -> list[Command]:
    return [command for command in peer.heard() if not command.is_response and command.code == code]


def answer(peer: Peer, request: Command, code: int = 0, body: bytes = b"", remark: str | None = None) -> None:
    peer.give_frame(encode_response(request.opaque, code, None, body, remark))


def tool(bench: Bench, code: int, ext: dict[str, str]) -> tuple[Peer, int]:
    peer = bench.peer()
    return peer, peer.give(code, ext)


def test_an_answer_is_passed_on_as_it_is(bench: Bench) -> None:
    client, other = consumer(bench), consumer(bench, "c2")
    who = dict.fromkeys(("AccessKey", "Signature", "SecurityToken", "OnBehalfOf"), "secret")
    admin, opaque = tool(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, INFO | who)
    assert admin.heard() == []
    (request,) = asked(client, RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert request.ext == INFO
    assert asked(other, RequestCode.GET_CONSUMER_RUNNING_INFO) == []
    answer(client, request, 1, b"what it says", "and why")
    (relayed,) = admin.heard()
    assert (relayed.opaque, relayed.code, bytes(relayed.body), relayed.remark) == (
        opaque, 1, b"what it says", "and why",
    )  # fmt: skip
    answer(client, request)
    assert admin.heard() == []
    assert len(bench.broker.state.calls) == 0


def test_a_client_that_says_nothing_or_goes(bench: Bench) -> None:
    client = consumer(bench)
    admin, _ = tool(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    bench.later(9_999)
    assert admin.heard() == []
    bench.later(1)
    (late,) = admin.heard()
    assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT
    admin, _ = tool(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    client.disconnect()
    (lost,) = admin.heard()
    assert (lost.code, "connection is gone" in (lost.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_who_cannot_be_asked(bench: Bench) -> None:
    absent = bench.peer().ask(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    assert (absent.code, absent.remark) == (1, "The Consumer <CG> <c1> not online")
    consumer(bench, version=61)
    old = bench.peer().ask(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    assert (old.code, "does not support" in (old.remark or "")) == (1, True)


def test_only_so_many_wait(bench: Bench) -> None:
    consumer(bench)
    admin = bench.peer()
    for _ in range(MAX_CALLS):
        admin.give(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    assert admin.heard() == []
    assert admin.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, INFO).code == ResponseCode.SYSTEM_BUSY


def test_a_message_from_the_log_to_one_consumer(bench: Bench) -> None:
    client = consumer(bench)
    sent = bench.peer().ask(SEND, send_ext("T", properties="k\x01v\x02"), b"body")
    bench.flush()
    ext = {"consumerGroup": "CG", "clientId": "c1", "msgId": sent.ext["msgId"], "topic": "T"}
    admin, _ = tool(bench, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    (request,) = asked(client, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert request.ext["brokerName"] == "b-a"
    assert {"topicSysFlag", "groupSysFlag"} <= set(request.ext)
    message = decode_record(request.body)
    assert (message.topic, message.body, message.properties["k"]) == ("T", b"body", "v")
    answer(client, request, 0, b'{"consumeResult":"CR_SUCCESS"}')
    assert bytes(admin.heard()[0].body) == b'{"consumeResult":"CR_SUCCESS"}'
    for wrong in ("nonsense", sent.ext["msgId"][:-4] + "FFFF"):
        refused = bench.peer().ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**ext, "msgId": wrong})
        assert (refused.code, bool(refused.remark)) == (ResponseCode.SYSTEM_ERROR, True)


def test_very_many_clients_are_asked_and_answered_for_in_slices(bench: Bench) -> None:
    clients = [consumer(bench, f"c{number:03d}") for number in range(3 * MEMBERS_AT_ONCE)]
    for client in clients:
        client.heard()
    admin, _ = tool(bench, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "CG"})
    calls, most = len(bench.broker.state.calls), 0
    most = calls
    while bench.broker.work():
        calls, before = len(bench.broker.state.calls), calls
        most = max(most, calls - before)
    assert most == MEMBERS_AT_ONCE
    for number, client in enumerate(clients):
        (request,) = asked(client, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
        key = queue_key(MessageQueue("T", "b-a", 0))
        answer(client, request, 0, encode_body(GetConsumerStatusBody(message_queue_table={key: number})))
    assert admin.heard() == [], "the answer is encoded in slices, too"
    while bench.broker.work():
        pass
    (gathered,) = admin.heard()
    table = decode_body(GetConsumerStatusBody, gathered.body).consumer_table
    assert sorted(number for queues in table.values() for number in queues.values()) == list(
        range(len(clients))
    )


def test_the_progress_of_all_clients_is_gathered(bench: Bench) -> None:
    clients = {client_id: consumer(bench, client_id) for client_id in ("c1", "c2", "c3", "c4")}
    admin, _ = tool(bench, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "CG"})
    key = queue_key(MessageQueue("T", "b-a", 0))
    for number, client_id in enumerate(("c1", "c2", "c3")):
        (request,) = asked(clients[client_id], RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
        assert request.ext["topic"] == "T"
        body = encode_body(GetConsumerStatusBody(message_queue_table={key: number}))
        answer(clients[client_id], request, 0, b"[nonsense" if client_id == "c3" else body)
    assert admin.heard() == []
    bench.later(5_000)
    (gathered,) = admin.heard()
    table = decode_body(GetConsumerStatusBody, gathered.body).consumer_table
    assert table == {"c1": {key: 0}, "c2": {key: 1}}
    admin, _ = tool(
        bench,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        {"topic": "T", "group": "CG", "clientAddr": "nobody"},
    )
    assert decode_body(GetConsumerStatusBody, admin.heard()[0].body).consumer_table == {}
    none = bench.peer().ask(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "Nobody"}
    )
    assert none.code == ResponseCode.SYSTEM_ERROR


def reset_ext(**more: str) -> dict[str, str]:
    return {"topic": "T", "group": "CG", "timestamp": "0", "isForce": "true", **more}


def test_a_reset_reaches_parked_pulls_at_once(bench: Bench) -> None:
    client = consumer(bench)
    for _ in range(3):
        client.ask(SEND, send_ext("T"), b"x")
    bench.flush()
    parked = [
        client.give_pull("T", queue_id, offset, sysFlag="6") for queue_id, offset in ((0, 3), (1, 0), (0, 3))
    ]
    assert client.heard() == []
    reply = bench.peer().ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_ext(queueId="0"))
    assert decode_body(ResetOffsetBody, reply.body).offset_table == {
        queue_key(MessageQueue("T", "b-a", 0)): 0
    }
    heard = {command.opaque: command for command in client.heard()}
    assert set(heard) == {parked[0]}, "a reset is for one pull"
    moved = heard[parked[0]]
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert bench.broker.pulls.parked.count == 2


def test_clients_are_told_when_the_broker_keeps_no_resets(tmp_path: Path) -> None:
    bench = Bench(tmp_path, use_server_side_reset_offset=False)
    client, cpp = consumer(bench), consumer(bench, "c2", language=Language.CPP)
    for _ in range(3):
        client.ask(SEND, send_ext("T"), b"x")
    bench.flush()
    unknown = bench.peer().ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_ext())
    assert unknown.code == ResponseCode.SYSTEM_ERROR, "it has committed nothing yet"
    queues = bench.broker.state.topics.get("T").read_queue_nums  # type: ignore[union-attr]
    for queue_id in range(queues):
        bench.broker.state.offsets.commit("CG", "T", queue_id, 1 if queue_id == 0 else 0)
    client.heard()
    cpp.heard()
    key = queue_key(MessageQueue("T", "b-a", 0))
    for timestamp, is_force, offset in (("0", "true", 0), ("-1", "true", 3), ("-1", "false", 1)):
        ext = reset_ext(timestamp=timestamp, isForce=is_force)
        reply = bench.peer().ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        assert decode_body(ResetOffsetBody, reply.body).offset_table[key] == offset
        (pushed,) = asked(client, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
        assert pushed.is_oneway
        header = pushed.header(ResetOffsetRequestHeader)
        assert (header.topic, header.group, header.timestamp) == ("T", "CG", int(timestamp))
        assert decode_body(ResetOffsetBody, pushed.body).offset_table[key] == offset
        (for_c,) = asked(cpp, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
        rows = decode_body(ResetOffsetBodyForC, for_c.body).offset_table
        assert (rows[0].queue_id, rows[0].offset) == (0, offset)
    client.disconnect()
    cpp.disconnect()
    offline = bench.peer().ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_ext())
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE


def test_correction_offsets_are_the_smallest_of_all_groups(bench: Bench) -> None:
    client = consumer(bench)
    for _ in range(9):
        client.ask(SEND, send_ext("T"), b"x")
    bench.flush()
    offsets = bench.broker.state.offsets
    for group, offset in (("A", 5), ("B", 3), ("Out", 1)):
        offsets.commit(group, "T", 0, offset)
    offsets.commit("Ahead", "T", 0, 9)

    def correction(group: str) -> dict[int, int]:
        ext = {"topic": "T", "compareGroup": group, "filterGroups": "Out"}
        reply = bench.peer().ask(RequestCode.QUERY_CORRECTION_OFFSET, ext)
        return decode_body(QueryCorrectionOffsetBody, reply.body).correction_offsets

    assert correction("Ahead") == {0: 3}
    assert correction("Out") == {0: (1 << 63) - 1}
    assert offsets.query("Out", "T", 0) == 1


def test_an_answer_that_makes_no_sense_is_said_to(bench: Bench) -> None:
    client = consumer(bench)
    admin, _ = tool(bench, RequestCode.GET_CONSUMER_RUNNING_INFO, INFO)
    (request,) = asked(client, RequestCode.GET_CONSUMER_RUNNING_INFO)
    header = (
        b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":479,"extFields":[1]}' % request.opaque
    )
    client.give_frame(struct.pack(">ii", 4 + len(header), len(header)) + header)
    (told,) = admin.heard()
    assert (told.code, "malformed" in (told.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
