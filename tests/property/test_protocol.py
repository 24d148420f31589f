"""Whatever bytes come, in whatever pieces: the same commands, or ProtocolError."""

from __future__ import annotations

import contextlib
import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqspark.auth.access import header_of
from mqspark.errors import ProtocolError
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.admin_bodies import ConsumeStats
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import HeartbeatData
from mqspark.protocol.bodies.topic_bodies import ClusterInfo, TopicRouteData
from mqspark.protocol.command import BINARY, JSON, Command, encode_request, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from mqspark.protocol.headers.header import to_ext
from tests.support.frames import decode_register_body, encode_command

# A busy machine is no finding.
relaxed = settings(suppress_health_check=[HealthCheck.too_slow])

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FIELDS = st.dictionaries(TEXT, TEXT, max_size=5)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    code = draw(st.integers(-1006, 200200))
    serialize_type = draw(st.sampled_from([JSON, BINARY]))
    ext = draw(st.none() | FIELDS)
    body = draw(st.binary(max_size=50) | st.sampled_from([b"x" * 70_000, bytes(range(251)) * 1_000]))
    remark = draw(st.none() | TEXT)
    if draw(st.booleans()):
        return encode_response(draw(I32), code, ext, body, remark, serialize_type=serialize_type)
    return encode_request(
        code, draw(I32), ext, body, oneway=draw(st.booleans()), remark=remark, serialize_type=serialize_type
    )


def picture(command: Command) -> tuple[object, ...]:
    return (
        *(command.code, command.opaque, command.flag, command.language, command.version, command.remark),
        *(command.serialize_type, command.ext, command.has_ext, bytes(command.body)),
    )


def feed(stream: bytes, cuts: list[int]) -> list[tuple[object, ...]]:
    connection, commands = Connection(), []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        commands += connection.receive_data(stream[start:end])
    assert connection.buffered_bytes == 0
    return [picture(command) for command in commands]


@relaxed
@given(st.lists(frames(), max_size=6), st.lists(st.integers(0, 1 << 30), max_size=12))
def test_chunks_do_not_matter(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    whole = feed(stream, [])
    assert len(whole) == len(parts)
    assert feed(stream, cuts) == whole
    if len(stream) < 3000:
        assert feed(stream, list(range(len(stream)))) == whole


@relaxed
@given(frames())
def test_encode_reverses_decode(frame: bytes) -> None:
    (command,) = Connection().receive_data(frame)
    assert encode_command(command) == frame


@relaxed
@given(
    *(TEXT, TEXT, I32, I64, st.none() | TEXT, st.none() | I32, st.none() | st.booleans()),
    st.sampled_from([JSON, BINARY]),
)
def test_typed_headers_survive_the_wire(
    group: str,
    topic: str,
    queue_id: int,
    born: int,
    properties: str | None,
    times: int | None,
    batch: bool | None,
    serialize_type: int,
) -> None:
    header = SendMessageRequestHeaderV2(
        producer_group=group or "g",
        topic=topic or "t",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=born,
        flag=0,
        properties=properties or None,
        reconsume_times=times,
        batch=batch,
    )
    (command,) = Connection().receive_data(encode_request(310, 1, header, serialize_type=serialize_type))
    assert command.header(SendMessageRequestHeaderV2) == header
    assert command.ext == to_ext(header)


def consume(data: bytes) -> None:
    for command in Connection().receive_data(data):
        encode_command(command)
        for header_type in (header_of(command.code), SendMessageRequestHeaderV2):
            if header_type is not None:
                command.header(header_type)


def never_worse_than_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        consume(data)


@relaxed
@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    never_worse_than_a_protocol_error(data)
    for kind in (JSON, BINARY):
        head = (4 + len(data)).to_bytes(4, "big") + ((kind << 24) | len(data)).to_bytes(4, "big")
        never_worse_than_a_protocol_error(head + data)


@relaxed
@given(frames(), st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_frames(frame: bytes, damages: list[tuple[int, int]]) -> None:
    damaged = bytearray(frame)
    for position, value in damages:
        damaged[position % min(len(damaged), 400)] = value
    never_worse_than_a_protocol_error(bytes(damaged))


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
HEADER_MEMBERS = ["code", "opaque", "flag", "language", "version", "remark", "extFields"]


@relaxed
@given(st.dictionaries(st.sampled_from(HEADER_MEMBERS), JSON_VALUE))
def test_json_headers_of_any_shape(members: dict[str, object]) -> None:
    text = fastjson.dumps_pretty(_encodable({"code": 310, **members})).encode()
    head = (4 + len(text)).to_bytes(4, "big") + len(text).to_bytes(4, "big")
    never_worse_than_a_protocol_error(head + text)


DIALECT = st.text(alphabet="{}[]:,'\"0123456789-.eE$ref\\u abtrun", max_size=60).map(str.encode)


@relaxed
@given(st.binary(max_size=60) | DIALECT)
def test_bodies_of_any_shape(data: bytes) -> None:
    for body_type in (HeartbeatData, TopicRouteData, ClusterInfo, ConsumeStats):
        with contextlib.suppress(ProtocolError):
            decode_body(body_type, data)
    for body in (data, b"x" + data):
        with contextlib.suppress(ProtocolError):
            decode_register_body(body, 479)


@relaxed
@given(JSON_VALUE)
def test_pretty_text_reads_back(value: object) -> None:
    plain = _encodable(value)
    assert fastjson.loads(fastjson.dumps_pretty(plain).encode()) == plain


def _encodable(value: object) -> object:
    """Without what JSON has no word for: other floats, integers over 64 bits."""
    if isinstance(value, float):
        return value if value == value and abs(value) < 1e300 else None
    if isinstance(value, int) and not isinstance(value, bool):
        return max(min(value, (1 << 63) - 1), -(1 << 63))
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    return value


@relaxed
@given(st.text(alphabet='{}[]:,"01-a \\n', max_size=40).map(str.encode))
def test_the_pass_that_quotes_keys_agrees_with_the_parser(data: bytes) -> None:
    quick = fastjson.parse_with_bare_keys(data)
    if quick is fastjson.NOT_JSON:
        return
    assert fastjson.JsonParser(data.decode()).parse() == quick


BARE = st.recursive(
    st.integers(-9, 9) | TEXT,
    lambda inner: (
        st.dictionaries(st.integers(-9, 99), inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=12,
)


@relaxed
@given(BARE)
def test_bare_keys_never_need_the_parser(value: object) -> None:
    text = fastjson.dumps_pretty(value).encode()
    quick = fastjson.parse_with_bare_keys(text)
    assert quick == fastjson.JsonParser(text.decode()).parse()
