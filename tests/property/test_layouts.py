"""Learned layouts against the general decoders: of every header the same command, or the same refusal."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqspark.auth.access import header_of
from mqspark.errors import MQError
from mqspark.protocol import command as commands
from mqspark.protocol.command import BINARY, JSON, Command, decode_command, decode_header, encode_request
from mqspark.protocol.connection import LOOK_EVERY, Connection
from mqspark.protocol.layouts import LEARNING_COST, MAX_ALIKE, PATIENCE, HeaderLayouts

relaxed = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=150
)

RECORDINGS = sorted((pathlib.Path(__file__).parents[1] / "golden" / "frames").glob("*.jsonl"))

FREQUENT = {310, 11, 14, 15, 200050, 200051, 200053}

KEY = "7F0000010BAD18B4AAC2000000000012"
SEND = {"a": "g", "b": "T", "c": "TBW102", "d": "8", "e": "3", "f": "0", "g": "1700000000000", "h": "0"}
SEND |= {"i": f"UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02TAGS\x01a\x02", "j": "0", "k": "false", "m": "false"}
PULL = {"consumerGroup": "g", "topic": "T", "queueId": "1", "queueOffset": "10203", "maxMsgNums": "32"}
PULL |= {"sysFlag": "6", "commitOffset": "10100", "suspendTimeoutMillis": "15000", "subVersion": "17"}
ACK = {"consumerGroup": "g", "topic": "T", "queueId": "0", "extraInfo": "7 1700000000000 60000 0 0 b 0 9"}
ACK |= {"offset": "9"}
OFFSET = {"consumerGroup": "g", "topic": "T", "queueId": "12", "commitOffset": "123456"}
SIGNED = {**SEND, "AccessKey": "me", "Signature": "7FbM+u/0x=", "SecurityToken": ""}
REQUESTS = [
    (310, SEND),
    (11, PULL),
    (200051, ACK),
    (15, OFFSET),
    (310, SIGNED),
    (310, {**SEND, "i": f"UNIQ_KEY\x01{KEY}"}),
    (310, {**SEND, "i": f"UNIQ_KEY\x01{KEY}\x02BORN_TIMESTAMP\x011700000000000\x02TAGS\x01a\x02"}),
]


def text_of(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def as_java(code: int, ext: dict[str, str], opaque: int) -> bytes:
    head = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque}
    return text_of({**head, "serializeTypeCurrentRPC": "JSON", "version": 479})


def as_go(code: int, ext: dict[str, str], opaque: int) -> bytes:
    head = {"code": code, "language": "GO", "version": 317, "opaque": opaque, "flag": 0, "remark": ""}
    return text_of({**head, "extFields": dict(sorted(ext.items(), reverse=True))})


def as_cpp(code: int, ext: dict[str, str], opaque: int) -> bytes:
    head = {"code": code, "extFields": ext, "flag": 0, "language": "CPP", "opaque": opaque, "version": 401}
    return text_of(head) + b"\n"


def ours(code: int, ext: dict[str, str], opaque: int) -> bytes:
    return encode_request(code, opaque, ext)[8:]


def binary(code: int, ext: dict[str, str], opaque: int) -> bytes:
    return encode_request(code & 0x7FFF, opaque, ext, serialize_type=BINARY)[8:]


WRITERS = [(JSON, as_java), (JSON, as_go), (JSON, as_cpp), (JSON, ours), (BINARY, binary)]


def picture(command: Command) -> tuple[object, ...]:
    return (
        *(command.code, command.opaque, command.flag, command.language, command.version, command.remark),
        *(command.serialize_type, command.has_ext, bytes(command.body)),
    )


def outcome(call: Any, *arguments: object) -> object:
    try:
        return call(*arguments)
    except MQError as error:
        return type(error), str(error)


def views(command: Command) -> list[object]:
    """What a handler and the check of a signature see of it, asked twice and in both orders."""
    header_type = header_of(command.code)
    seen: list[object] = [picture(command)]
    if header_type is not None:
        seen += [outcome(command.header, header_type), outcome(command.header, header_type)]
    fields = outcome(lambda: list(command.ext.items()))
    return [*seen, fields, outcome(command.header, header_type) if header_type is not None else None]


def compare(kind: int, header: bytes) -> Command | None:
    """The command; None when it is refused. Every byte around the header is one that must not be looked at."""
    general = outcome(decode_header, kind, header, b"body")
    data = b'9"\x01' + header + b'9"\x01'
    known = outcome(decode_command, data, 3, kind << 24 | len(header), b"body")
    if not isinstance(general, Command):
        assert known == general
        return None
    assert isinstance(known, Command)
    assert views(known) == views(general)
    return known


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> HeaderLayouts:
    """Layouts that learn everything at once."""
    layouts = HeaderLayouts(learning_cost=0)
    monkeypatch.setattr(commands, "layouts", layouts)
    return layouts


@pytest.mark.parametrize(("kind", "write"), WRITERS, ids=lambda each: getattr(each, "__name__", ""))
@pytest.mark.parametrize(("code", "ext"), REQUESTS)
def test_a_second_header_of_every_client_is_known(
    eager: HeaderLayouts, kind: int, write: Any, code: int, ext: dict[str, str]
) -> None:
    first = compare(kind, write(code, ext, 7))
    assert first is not None
    assert first.layout is None
    again = {
        "e": "5",
        "g": "1700000000001",
        "queueId": "2",
        "queueOffset": "10204",
        "offset": "8",
        "commitOffset": "9",
    }
    again = {name: value.zfill(len(ext[name])) for name, value in again.items() if name in ext}
    if "i" in ext:
        again["i"] = (
            ext["i"]
            .replace(KEY, KEY[:-1] + "F")
            .replace("TIMESTAMP\x011700000000000", "TIMESTAMP\x011700000000001")
        )
    if "extraInfo" in ext:
        again["extraInfo"] = ext["extraInfo"].replace("7 17", "8 16")
    second = compare(kind, write(code, {**ext, **again}, 9))
    assert second is not None
    assert (second.layout is not None) == (kind == BINARY or "i" in ext)


DIGITS = st.text("0123456789", min_size=1, max_size=3) | st.integers(-(1 << 64), 1 << 64).map(str)
ODD = st.sampled_from(
    [
        "",
        "-1",
        "+5",
        "007",
        "1_0",
        " 1",
        "1 ",
        "1.0",
        "1e3",
        "null",
        "true",
        "2147483648",
        "9" * 19,
        "٣",
        "x",
        "\ud7ff",
        '"',
        "\\",
        "\x00",
    ]
)
VALUES = DIGITS | ODD | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
KEYS = st.sampled_from(
    [KEY, KEY.lower(), KEY[:-1] + "é", KEY[:-1] + "_", KEY[:-1] + '"', "DELAY" * 6 + "xx", ""]
)
PROPERTIES = st.builds(
    lambda before, key, after: f"{before}UNIQ_KEY\x01{key}\x02{after}",
    st.sampled_from(["", "KEYS\x01k1\x02", "KEYS\x01é\x02", "UNIQ_KEY\x01x\x02", "\x02", "DELAY\x011\x02"]),
    KEYS,
    st.sampled_from(
        [
            "WAIT\x01true\x02",
            "BORN_TIMESTAMP\x011700000000000\x02",
            "BORN_TIMESTAMP\x012\x02",
            "WAIT\x01false",
            "TAGS\x01ab\x02",
            "UNIQ_KEY\x01y\x02",
            '"',
            "\\u0002",
        ]
    ),
)


@st.composite
def changed(draw: st.DrawFn, ext: dict[str, str]) -> dict[str, str]:
    changes: dict[str, str] = draw(
        st.dictionaries(st.sampled_from([*ext, "e2", "queueid"]), VALUES, max_size=2)
    )
    names = [name for name in ("i", "properties") if name in ext]
    if names and draw(st.booleans()):
        changes[names[0]] = draw(PROPERTIES)
    return {**ext, **changes}


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[bytes]]:
    """Headers of one client, of which some fields differ."""
    kind, write = draw(st.sampled_from(WRITERS))
    code, ext = draw(st.sampled_from(REQUESTS))
    opaques = st.integers(0, 200) | st.sampled_from([-1, 999_999_999, 0x7FFFFFFF, -0x80000000])
    exts = [ext, *draw(st.lists(changed(ext), max_size=5)), ext]
    return kind, [write(code, each, draw(opaques)) for each in exts]


@relaxed
@given(runs())
def test_headers_of_which_fields_differ(eager: HeaderLayouts, run: tuple[int, list[bytes]]) -> None:
    kind, headers = run
    for header in headers:
        compare(kind, header)


@st.composite
def broken(draw: st.DrawFn, header: bytes) -> bytes:
    """Some bytes replaced, doubled or left out; most often of the same length."""
    data = bytearray(header)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data) - 1))
        how = draw(st.integers(0, 9))
        if how < 7:
            data[at] = draw(
                st.sampled_from(b'"\\{}:,0159eg-+ _u\x00\x01\x02\x7f\x80\xc3\xa9\xff') | st.integers(0, 255)
            )
        elif how < 8:
            del data[at]
        elif how < 9:
            data[at:at] = data[at : at + 1]
        else:
            end = draw(st.integers(at, len(data)))
            data[at:at] = data[at:end]
            del data[len(header) :]
    return bytes(data)


@relaxed
@given(runs(), st.data())
def test_mutated_headers(eager: HeaderLayouts, run: tuple[int, list[bytes]], data: st.DataObject) -> None:
    kind, headers = run
    compare(kind, headers[0])
    for _ in range(6):
        header = data.draw(broken(data.draw(st.sampled_from(headers))))
        compare(kind, header)
        compare(kind, header)
    compare(kind, headers[0])


def test_recorded_frames_three_times(eager: HeaderLayouts) -> None:
    """What RocketMQ's clients and tools have sent."""
    known = set()
    for recording in RECORDINGS:
        for line in recording.read_text().splitlines():
            frame = bytes.fromhex(json.loads(line)["frame_hex"])
            header = frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
            for _ in range(3):
                seen = compare(frame[4], header)
                assert seen is not None
            if seen.layout is not None:
                known.add(seen.code)
            else:
                assert (
                    seen.is_response
                    or not (seen.ext and header.isascii())
                    or (seen.serialize_type == JSON and b"UNIQ_KEY" not in header)
                    or seen.code not in FREQUENT
                ), header
    assert known & FREQUENT


def test_learning_is_rationed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of different headers are decoded, and one of LEARNING_COST learned; a client in between keeps its."""
    layouts = HeaderLayouts(max_bytes=400_000)
    monkeypatch.setattr(commands, "layouts", layouts)
    learned = 0
    learn = layouts.learn

    def counting(*arguments: Any) -> None:
        nonlocal learned
        learned += 1
        learn(*arguments)

    monkeypatch.setattr(layouts, "learn", counting)
    compare(BINARY, binary(11, PULL, 1))
    for number in range(20_000):
        other = as_java(310, {**SEND, "a": f"{number:05}", "b": "x" * (number % 300)}, 1)
        decode_command(other, 0, len(other), b"")
        if number % 50 == 0:
            pull = binary(11, PULL, number % 10)
            assert decode_command(pull, 0, BINARY << 24 | len(pull), b"").layout is not None
        assert layouts.bytes <= 400_000
    assert learned <= 64 + 20_000 // LEARNING_COST + 1
    assert layouts.bytes == sum(each.bytes for alike in layouts.known.values() for each in alike)
    assert max(map(len, layouts.known.values())) <= MAX_ALIKE


def test_layouts_that_fit_nothing_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """So headers of their length, which are unlike them, cost no more than others; they are learned again."""
    layouts = HeaderLayouts()
    monkeypatch.setattr(commands, "layouts", layouts)
    known, unlike = binary(11, PULL, 1), binary(11, {**PULL, "topic": "U"}, 1)
    meta = BINARY << 24 | len(known)
    decode_command(known, 0, meta, b"")
    layouts.credit = 0
    for _ in range(PATIENCE - 1):
        assert decode_command(unlike, 0, meta, b"").layout is None
    assert decode_command(known, 0, meta, b"").layout is not None
    for _ in range(PATIENCE):
        assert decode_command(unlike, 0, meta, b"").layout is None
    assert (layouts.known, layouts.bytes) == ({}, 0)
    layouts.credit = LEARNING_COST
    assert decode_command(known, 0, meta, b"").layout is None
    assert decode_command(known, 0, meta, b"").layout is not None


def test_headers_that_are_not_worth_it_leave_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = HeaderLayouts()
    monkeypatch.setattr(commands, "layouts", layouts)
    pull, send = as_java(11, PULL, 1), as_java(310, SEND, 1)
    for number in range(200_000):
        header, body = (send, b"body") if number % 100 == 0 else (pull, b"")
        if decode_command(header, 0, len(header), body).layout is not None:
            break
        if number == 99_999:
            assert layouts.known
    assert list(layouts.known) == [len(send)]


def test_a_peer_of_unknown_headers_is_hardly_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """One read of LOOK_EVERY is, and as soon as a header has a layout all are. Learning goes on as if all were."""
    layouts = HeaderLayouts()
    monkeypatch.setattr(commands, "layouts", layouts)
    known = encode_request(11, 7, PULL, serialize_type=BINARY)
    unknown = encode_request(
        310, 7, {**SEND, "i": "WAIT\x01true\x02"}, b"body"
    )  # without an id it is not learned
    Connection().receive_data(known)
    peer = Connection()
    layouts.credit = 0
    for _ in range(LOOK_EVERY + 1):
        peer.receive_data(unknown)
    assert layouts.credit == LOOK_EVERY + 1
    unseen = [peer.receive_data(known)[0] for _ in range(LOOK_EVERY - 1)]
    (seen,) = peer.receive_data(known)
    (next_one,) = peer.receive_data(known)
    assert {each.layout for each in unseen} == {None}
    assert seen.layout is not None
    assert next_one.layout is seen.layout
    assert views(unseen[0]) == views(seen)
    for _ in range(2 * LEARNING_COST):
        peer.receive_data(unknown)
        assert layouts.credit <= LEARNING_COST
