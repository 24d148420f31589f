"""Frames, headers in both serialisations, bounds of the incremental parser."""

from __future__ import annotations

import contextlib
import json

import pytest

from mqspark.errors import FrameTooLarge, ProtocolError
from mqspark.protocol.codes import CURRENT_VERSION, Language, RequestCode, ResponseCode
from mqspark.protocol.command import (
    BINARY,
    JSON,
    UNREAD_CODE,
    Command,
    UnreadRequest,
    encode_request,
    encode_request_head,
    encode_response,
    encode_response_head,
    send_response_frame,
)
from mqspark.protocol.connection import KEPT_BYTES, LARGE_BODY_BYTES, MAX_HEADER_BYTES, Connection
from mqspark.protocol.headers.client_headers import (
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from mqspark.protocol.headers.cluster_headers import GetRouteInfoRequestHeader
from mqspark.protocol.headers.header import to_ext
from mqspark.protocol.layouts import HeaderLayouts
from tests.support.frames import encode_command

PROPERTIES = "TAGS\x01TagA\x02KEYS\x01k1 k2\x02WAIT\x01true\x02UNIQ_KEY\x010A000009\x02"
SEND = SendMessageRequestHeaderV2(
    producer_group="PG",
    topic="Orders",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=2,
    sys_flag=0,
    born_timestamp=1700000000000,
    flag=0,
    properties=PROPERTIES,
    reconsume_times=0,
    unit_mode=False,
    batch=False,
    bname="b-a",
)


def decode(frame: bytes) -> Command:
    (command,) = Connection().receive_data(frame)
    return command


def json_frame(text: str | bytes, body: bytes = b"") -> bytes:
    header = text.encode() if isinstance(text, str) else text
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_request_round_trip(serialize_type: int) -> None:
    frame = encode_request(
        RequestCode.SEND_MESSAGE_V2, 9, SEND, b"hi", remark="r", serialize_type=serialize_type, oneway=True
    )
    command = decode(frame)
    assert (command.code, command.opaque, command.flag, command.version) == (310, 9, 2, CURRENT_VERSION)
    assert command.language == Language.PYTHON
    assert command.remark == "r"
    assert command.serialize_type == serialize_type
    assert command.is_oneway
    assert not command.is_response
    assert bytes(command.body) == b"hi"
    assert command.header(SendMessageRequestHeaderV2) == SEND
    assert command.ext == to_ext(SEND)
    assert encode_command(command) == frame


def test_v1_and_v2_send_headers_have_the_same_attributes() -> None:
    values = {name: getattr(SEND, name) for name in SEND.__struct_fields__}
    v1 = SendMessageRequestHeader(**values)
    command = decode(encode_request(RequestCode.SEND_MESSAGE, 1, v1))
    assert command.ext["producerGroup"] == "PG"
    assert command.header(SendMessageRequestHeader) == v1
    assert set(v1.__struct_fields__) == set(SEND.__struct_fields__)


def test_head_and_body_in_two_buffers() -> None:
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=13, min_offset=0, max_offset=13
    )
    head = encode_response_head(7, ResponseCode.SUCCESS, header, 5, "FOUND")
    assert head + b"12345" == encode_response(7, ResponseCode.SUCCESS, header, b"12345", "FOUND")
    command = decode(head + b"12345")
    assert command.is_response
    assert command.remark == "FOUND"
    assert command.header(PullMessageResponseHeader) == header
    head = encode_request_head(310, 7, SEND, 2)
    assert head + b"hi" == encode_request(310, 7, SEND, b"hi")


@pytest.mark.parametrize("transaction_id", [None, "0A000009", 'quote " and \x01', "ключ", ""])
def test_send_response_frame_equals_the_general_form(transaction_id: str | None) -> None:
    header = SendMessageResponseHeader(
        msg_id="0A00000100002A9F0000000000000400", queue_id=2, queue_offset=5, transaction_id=transaction_id
    )
    general = decode(
        encode_response(9, 0, {**to_ext(header), "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})
    )
    special = decode(send_response_frame(9, header.msg_id, 2, 5, transaction_id))
    assert special.ext == general.ext
    assert special.header(SendMessageResponseHeader) == header
    for name in ("code", "flag", "opaque", "language", "version", "remark", "body"):
        assert getattr(special, name) == getattr(general, name), name


def test_codes_that_the_binary_header_cannot_hold_go_out_in_json() -> None:
    command = decode(encode_request(RequestCode.POP_MESSAGE, 1, {"topic": "T"}, serialize_type=BINARY))
    assert command.code == RequestCode.POP_MESSAGE
    assert command.serialize_type == JSON


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"code":"105","opaque":"-7"}', (105, -7, 0, 0)),
        ('{"code":1,"language":"go","unknown":[{}]}', (1, 0, Language.GO, 0)),
        ('{"code":1,"language":9}', (1, 0, Language.GO, 0)),
        ('{"code":1,"language":"KLINGON"}', (1, 0, -1, 0)),
        ('{"code":1,"extFields":null,"remark":null}', (1, 0, 0, 0)),
        (" {'code':1,opaque:3.0,\"version\":479,} ", (1, 3, 0, 479)),
    ],
)
def test_json_header_tolerance(text: str, expected: tuple[int, int, int, int]) -> None:
    command = decode(json_frame(text))
    assert (command.code, command.opaque, command.language, command.version) == expected
    assert command.ext == {}
    assert not command.has_ext
    assert command.remark is None


def test_ext_values_that_are_no_text_are_coerced() -> None:
    command = decode(
        json_frame('{"code":1,"extFields":{"i":1,"b":true,"n":null,"a":[1,"x"],"o":{"k":false},"d":0.5}}')
    )
    assert command.ext == {"i": "1", "b": "true", "a": '[1,"x"]', "o": '{"k":false}', "d": "0.5"}


def test_typed_header_from_numbers_and_odd_booleans() -> None:
    text = '{"code":14,"extFields":{"consumerGroup":5,"topic":"T","queueId":7,"setZeroIfNotFound":"yes"}}'
    header = decode(json_frame(text)).header(QueryConsumerOffsetRequestHeader)
    assert header == QueryConsumerOffsetRequestHeader(
        consumer_group="5", topic="T", queue_id=7, set_zero_if_not_found=False
    )


@pytest.mark.parametrize("odd", ["", "yes"], ids=["fast", "patient"])
@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize(("text", "expected"), [("1", True), ("TRUE", True), ("0", False), ("false", False)])
def test_ones_are_true(text: str, expected: bool, serialize_type: int, odd: str) -> None:
    """As the C++ client writes booleans, whichever decoder takes them."""
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "7", "setZeroIfNotFound": text}
    if odd:
        ext["lo"] = odd  # what the fast decoder refuses
    command = decode(encode_request(14, 1, ext, serialize_type=serialize_type))
    assert command.header(QueryConsumerOffsetRequestHeader).set_zero_if_not_found is expected


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize(
    ("ext", "field"),
    [
        ({"topic": "T", "queueId": "1"}, "consumerGroup"),
        ({"consumerGroup": "G", "topic": "T", "queueId": "one"}, "queueId"),
        ({"consumerGroup": "G", "topic": "T", "queueId": "2147483648"}, "queueId"),
        ({"consumerGroup": "G", "topic": "T", "queueId": "9" * 5000}, "queueId"),
        (None, "consumerGroup"),
    ],
)
def test_missing_and_malformed_fields_are_named(
    ext: dict[str, str] | None, field: str, serialize_type: int
) -> None:
    command = decode(encode_request(14, 1, ext, serialize_type=serialize_type))
    with pytest.raises(ProtocolError, match=field):
        command.header(QueryConsumerOffsetRequestHeader)


def test_one_letter_fields_are_named_by_meaning_too() -> None:
    with pytest.raises(ProtocolError, match=r"'b' \(topic\)"):
        decode(encode_request(310, 1, {"a": "PG"})).header(SendMessageRequestHeaderV2)


def test_empty_text_is_null_in_the_binary_header_only() -> None:
    header = {"topic": "", "acceptStandardJsonOnly": "true"}
    assert decode(encode_request(105, 1, header)).header(GetRouteInfoRequestHeader).topic == ""
    binary = decode(encode_request(105, 1, header, serialize_type=BINARY))
    with pytest.raises(ProtocolError, match="topic"):
        binary.header(GetRouteInfoRequestHeader)


def test_binary_headers_of_the_same_length_are_told_apart() -> None:
    """HeaderLayouts are remembered by length: more of them than are remembered, twice, in turn with other values."""
    alike = [
        {"e": "12", "i": "x" * 8},
        {"e": "1", "i": "x" * 9},
        {"i": "x" * 8, "e": "12"},
        {"ee": "1", "i": "x" * 8},
    ]
    alike += [{"e": "", "i": "x" * 10}, {"e": "x" * 10, "i": ""}, {"f": "é", "i": "x" * 8}]
    for value in ("x", "y", "x"):
        for ext in alike:
            ext = {name: text.replace("x", value) for name, text in ext.items()}
            assert decode(encode_request(310, 1, ext, serialize_type=BINARY)).ext == ext


def test_a_long_header_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.protocol.command.layouts", layouts := HeaderLayouts())
    ext = {"queueId": "1"} | {f"name{number}": "v" for number in range(200)}
    for serialize_type in (JSON, BINARY):
        for _ in range(2):
            assert decode(encode_request(310, 1, ext, serialize_type=serialize_type)).ext == ext
    assert not layouts.known


def test_a_wrong_length_in_a_binary_header_is_found() -> None:
    broken = bytearray(encode_request(310, 1, {"a": "1", "b": "2"}, serialize_type=BINARY))
    decode(bytes(broken))
    broken[-5] = 9  # the length of the last value
    with pytest.raises(ProtocolError, match="exceeds its block"):
        decode(bytes(broken))


# --- the incremental parser -------------------------------------------------------------------------------


def test_all_commands_of_a_chunk_and_a_tail() -> None:
    frames = [encode_request(310, n, SEND, bytes([n]) * n) for n in range(20)]
    stream = b"".join(frames)
    connection = Connection()
    commands = connection.receive_data(stream + frames[3][:30])
    assert [command.opaque for command in commands] == list(range(20))
    assert connection.buffered_bytes == 30
    (last,) = connection.receive_data(frames[3][30:])
    assert (last.opaque, last.body) == (3, bytes([3]) * 3)
    assert connection.buffered_bytes == 0


@pytest.mark.parametrize("size", [0, 1, LARGE_BODY_BYTES - 1, LARGE_BODY_BYTES, 3 * LARGE_BODY_BYTES])
@pytest.mark.parametrize("chunk", [7, 4096, 1 << 20])
def test_bodies_of_every_size_in_every_chunk(size: int, chunk: int) -> None:
    body = bytes(n % 251 for n in range(size))
    stream = encode_request(310, 1, SEND, body) + encode_request(34, 2, None, b"x")
    connection = Connection()
    commands = []
    for start in range(0, len(stream), chunk):
        commands += connection.receive_data(stream[start : start + chunk])
    assert [command.opaque for command in commands] == [1, 2]
    assert commands[0].body == body
    assert isinstance(commands[0].body, memoryview) == (size >= LARGE_BODY_BYTES)


@pytest.mark.parametrize("size", [1, LARGE_BODY_BYTES, 3 * LARGE_BODY_BYTES])
@pytest.mark.parametrize("chunk", [7, 4096, LARGE_BODY_BYTES + 50, 1 << 20])
def test_the_rest_of_a_large_frame_is_read_into_its_place(size: int, chunk: int) -> None:
    bodies = [bytes((n + size) % 251 for n in range(size)), b"x", bytes(size)]
    stream = b"".join(encode_request(310, number, SEND, body) for number, body in enumerate(bodies))
    connection = Connection()
    commands = []
    position = placed = 0
    while position < len(stream):
        rest = connection.rest()
        piece = stream[position : position + (chunk if rest is None else min(chunk, len(rest)))]
        if rest is None:
            commands += connection.receive_data(piece)
        else:
            rest[: len(piece)] = piece
            placed += len(piece)
            before = connection.buffered_bytes
            commands += connection.received_rest(len(piece))
            assert connection.buffered_bytes in (before + len(piece), 0)
        position += len(piece)
    assert [command.body for command in commands] == bodies
    assert placed if size > LARGE_BODY_BYTES and chunk < LARGE_BODY_BYTES else size > 1 or not placed
    assert connection.rest() is None


def test_bounds_hold_before_the_bytes_come() -> None:
    with pytest.raises(FrameTooLarge) as caught:
        Connection().receive_data(b"\x00\xff\xff\xfd" + b"\x00\x00\x00\x10")
    assert (caught.value.length, caught.value.limit) == (0xFFFFFD + 4, 1 << 24)
    for size in (MAX_HEADER_BYTES, MAX_HEADER_BYTES + 1):
        begun = (1 << 20).to_bytes(4, "big") + size.to_bytes(4, "big")
        for chunks in ([begun], [begun[at : at + 1] for at in range(len(begun))]):
            connection = Connection()
            with pytest.raises(FrameTooLarge) if size > MAX_HEADER_BYTES else contextlib.nullcontext():
                for chunk in chunks:
                    connection.receive_data(chunk)
    assert Connection().receive_data(b"\x00\xff\xff\xfc" + b"\x00\x00\x00\x10") == []


GO_HEADER = '{"code":310,"language":"GO","opaque":7,"flag":0,"extFields":{"i":%s}}'
JAVA_HEADER = '{"code":310,"extFields":{"i":%s},"flag":0,"language":"JAVA","opaque":7,"version":455}'


@pytest.mark.parametrize("chunk", [1, 1000, 4096, 1 << 20])
@pytest.mark.parametrize(
    "long",
    [
        json_frame(JAVA_HEADER % json.dumps('"opaque":5,"code":6,' * 20_000), b"a body"),
        json_frame(GO_HEADER % json.dumps("\u4e2d" * 100_000, ensure_ascii=False), b"x" * 5000),
        encode_request(310, 7, {"i": "v" * MAX_HEADER_BYTES}, b"a body", serialize_type=BINARY),
    ],
    ids=["java", "go", "binary"],
)
def test_a_server_reads_over_too_long_a_header(long: bytes, chunk: int) -> None:
    chunk = max(chunk, len(long) // 5000) if chunk == 1 else chunk
    before, after = encode_request(34, 1), encode_request(35, 2, body=b"next")
    connection = Connection(in_slices=True, reads_over=True)
    data, commands = before + long + after, []
    for at in range(0, len(data), chunk):
        commands += connection.receive_data(data[at : at + chunk])
        assert connection.buffered_bytes <= 2 * KEPT_BYTES + 8
    first, unread, last = commands
    assert (first.code, last.code, bytes(last.body), connection.buffered_bytes) == (34, 35, b"next", 0)
    assert isinstance(unread, UnreadRequest)
    assert (unread.code, unread.asked, unread.opaque, unread.flag) == (UNREAD_CODE, 310, 7, 0)
    assert str(MAX_HEADER_BYTES) in unread.exceeded


@pytest.mark.parametrize(
    "header", ['{"i":"%s"}', '{"code":310,"i":"%s"}', '{"code":310,"opaque":9999999999,"i":"%s"}']
)
def test_a_long_header_that_cannot_be_answered_ends_the_connection(header: str) -> None:
    with pytest.raises(FrameTooLarge):
        Connection(reads_over=True).receive_data(json_frame(header % ("x" * MAX_HEADER_BYTES)))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x02{}",  # negative length
        b"\x00\x00\x00\x03\x00\x00\x00\x00",  # shorter than its own header length field
        b"\x00\x00\x00\x06\x00\x00\x00\x03{}",  # header longer than the frame
        b"\x00\x00\x00\x04\x00\x00\x00\x00",  # no header
        b"\x00\x00\x00\x06\x02\x00\x00\x02{}",  # unknown serialisation
        b"GET / HTTP/1.1\r\n\r\n",
        json_frame("{}"),
        json_frame('{"code":1.5}'),
        json_frame('{"code":4294967296}'),
        json_frame('{"code":true}'),
        json_frame('{"code":"--5"}'),
        json_frame('{"code":1,"remark":"\xff"}'.encode("latin-1")),
        json_frame("[" * 60000),
        json_frame('{"code":1,"x":' + "[" * 60000),
        json_frame("[1]"),
        b"\x00\x00\x00\x08\x01\x00\x00\x04abcd",  # a binary header too short to be one
    ],
)
@pytest.mark.parametrize("dribble", [False, True])
def test_what_is_no_frame_raises(data: bytes, dribble: bool) -> None:
    connection = Connection()
    chunks = [data[n : n + 1] for n in range(len(data))] if dribble else [data]
    with pytest.raises(ProtocolError):
        list(map(connection.receive_data, chunks))


def test_lying_lengths_in_a_binary_header() -> None:
    good = encode_request(105, 7, {"topic": "Orders"}, remark="r", serialize_type=BINARY)
    for position in range(8, len(good)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            bad = bytearray(good)
            bad[position] = value
            try:
                commands = Connection().receive_data(bytes(bad))
            except ProtocolError:
                continue
            assert len(commands) == 1


def test_json_of_the_frames_is_what_rocketmq_writes() -> None:
    frame = encode_response(8, 17, remark="no route", version=479)
    expected = (
        '{"code":17,"flag":1,"language":"JAVA","opaque":8,"remark":"no route",'
        '"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    assert frame[8:].decode() == expected
    assert json.loads(frame[8:])


def test_an_answer_of_an_http_server_is_named() -> None:
    with pytest.raises(ProtocolError, match="the peer speaks HTTP"):
        Connection().receive_data(b"HTTP/1.1 400 Bad Request\r\n\r\n")
