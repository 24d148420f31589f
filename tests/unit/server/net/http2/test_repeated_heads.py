"""Heads that repeat the last one are what decoding makes of them, and leave the table that decoding leaves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from mqspark_server.net.http2.headerblocks import _STATIC_FIELDS, TABLE_BYTES
from mqspark_server.net.http2.http2frames import Http2Error
from mqspark_server.net.http2.http2streams import Malformed
from mqspark_server.net.http2.repeatedheads import RepeatedHead
from mqspark_server.net.http2.requestheads import MAX_KIND_BYTES, RequestHeads

UNREAD = "x-mq-request-id"
Fields = Sequence[tuple[str, str]]


def integer(number: int, bits: int, first: int) -> bytes:
    most = (1 << bits) - 1
    if number < most:
        return bytes([first | number])
    made, number = [first | most], number - most
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def string(text: str) -> bytes:
    return integer(len(text), 7, 0) + text.encode("latin-1")


class Encoder:
    """Puts all into the table that is not there, as clients in Java do."""

    def __init__(self, limit: int = TABLE_BYTES) -> None:
        self._table: list[tuple[str, str]] = []
        self._limit = limit

    def block(self, fields: Fields, *, unindexed: Sequence[str] = ()) -> bytes:
        return b"".join(self._field(*field, unindexed) for field in fields)

    def _field(self, name: str, value: str, unindexed: Sequence[str]) -> bytes:
        known = [*_STATIC_FIELDS, *self._table]
        if (name, value) in known:
            return integer(known.index((name, value)) + 1, 7, 0x80)
        names = [each for each, _ in known]
        index = names.index(name) + 1 if name in names else 0
        bits, first = (4, 0) if name in unindexed else (6, 0x40)
        made = integer(index, bits, first) + (b"" if index else string(name)) + string(value)
        if name not in unindexed:
            self._table.insert(0, (name, value))
            while sum(len(name) + len(value) + 32 for name, value in self._table) > self._limit:
                self._table.pop()
        return made


def outcome(heads: RequestHeads, block: bytes) -> Any:
    try:
        head = heads.head(block)
    except (Malformed, Http2Error) as error:
        return type(error)
    if head is None:
        return None
    fields = {name: value for name, value in head.fields.items() if name != UNREAD}
    return head.method, head.path, head.scheme, head.content_length, fields


def table(heads: RequestHeads) -> list[Any]:
    """What each index means, the newest first."""
    found: list[Any] = []
    while True:
        try:
            found.append(heads.decoded(integer(len(_STATIC_FIELDS) + 1 + len(found), 7, 0x80)))
        except Http2Error:
            return found


def call(number: int, chance: random.Random) -> list[tuple[str, str]]:
    """The head of a call of a client."""
    path = chance.choices(("/service/AckMessage", "/service/ReceiveMessage"), (30, 1))[0]
    fields = [(":authority", "host"), (":path", path), (":method", "POST"), (":scheme", "http")]
    fields += [
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "grpc-java-netty/1.50.0"),
    ]
    fields += [
        ("x-mq-date-time", f"20261130T1146{number // 100:02}Z"),
        (UNREAD, f"{chance.getrandbits(128):032x}"),
    ]
    fields += [("x-mq-client-id", "vm@1"), ("x-mq-namespace", ""), ("grpc-accept-encoding", "gzip")]
    if chance.random() < 0.95:
        fields.append(("grpc-timeout", f"{29_999_990 + chance.randrange(chance.choice((3, 60)))}u"))
    return fields


@pytest.fixture
def hits(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Blocks that were compared."""
    compared: list[bytes] = []
    again = RepeatedHead.again

    def noted(self: RepeatedHead, block: bytes) -> Any:
        head = again(self, block)
        if head is not None:
            compared.append(block)
        return head

    monkeypatch.setattr(RepeatedHead, "again", noted)
    return compared


def test_calls_of_a_client_are_compared(hits: list[bytes]) -> None:
    chance, encoder = random.Random(3), Encoder()
    plain, heads = RequestHeads(), RequestHeads({UNREAD})
    for number in range(3_000):
        block = encoder.block(call(number, chance))
        expected = outcome(plain, block)
        assert outcome(heads, block) == expected
        assert table(heads) == table(plain)
        head = heads.head(encoder.block(call(number, chance))) if number == 2_999 else None
        assert head is None or UNREAD not in head.fields
    assert len(hits) > 2_000


@pytest.mark.parametrize("limit", [200, 1_000, TABLE_BYTES])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_fields_are(seed: int, limit: int, hits: list[bytes]) -> None:
    """Other places, lengths, forms; two of them; sizes of the table that change; a last field that no request has."""
    chance = random.Random(seed)
    encoder = Encoder(limit)
    plain, heads = RequestHeads(), RequestHeads({UNREAD})
    start = b"" if limit == TABLE_BYTES else integer(limit, 5, 0x20)
    fields = call(0, chance)
    for number in range(2_000):
        if chance.random() < 0.05:
            fields = call(number, chance)
            if chance.random() < 0.3:
                chance.shuffle(fields)
            if chance.random() < 0.2:
                fields.append((UNREAD, "twice"))
        value = chance.choice(
            ("", "é", " ", "a", "a" * 32, "a" * 130, f"{number:08}", f"{number:08}", f"{number:08}")
        )
        fields = [(name, value if name == UNREAD else given) for name, given in fields]
        unindexed = chance.choices(((), (UNREAD,), ("grpc-timeout",)), (20, 1, 1))[0]
        odd = chance.choices(
            (None, (":authority", ""), ("te", "no"), ("connection", "close")), (20, 1, 1, 1)
        )[0]
        block = start + encoder.block([*fields[:-1], odd] if odd else fields, unindexed=unindexed)
        start = b""
        expected = outcome(plain, block)
        assert outcome(heads, block) == expected
        assert table(heads) == table(plain)
    assert len(hits) > 50 or limit < TABLE_BYTES


@pytest.mark.parametrize("seed", range(4))
def test_damaged_blocks(seed: int, hits: list[bytes]) -> None:
    chance = random.Random(seed)
    wrong = 0
    for _ in range(60):
        encoder, plain, heads = Encoder(), RequestHeads(), RequestHeads({UNREAD})
        for number in range(chance.randrange(2, 70)):
            block = encoder.block(call(number, chance))
            assert outcome(heads, block) == outcome(plain, block)
        for _ in range(4):
            damaged = bytearray(encoder.block(call(0, chance)))
            for _ in range(chance.choice((0, 1, 1, 2))):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            if chance.random() < 0.2:
                del damaged[chance.randrange(len(damaged)) :]
            if chance.random() < 0.1:
                damaged.insert(chance.randrange(len(damaged) + 1), chance.randrange(256))
            expected = outcome(plain, bytes(damaged))
            assert outcome(heads, bytes(damaged)) == expected
            assert table(heads) == table(plain)
            if expected is Http2Error:
                wrong += 1
                break
    assert wrong > 10
    assert hits


def test_an_index_of_what_is_not_there_any_more_ends_the_connection(hits: list[bytes]) -> None:
    """The first field is pushed out while the client still names it."""
    encoder, heads = Encoder(), RequestHeads({UNREAD})
    chance = random.Random(5)
    fields = [*call(0, chance)[:-1], ("grpc-timeout", "1S")]
    heads.head(encoder.block(fields))
    heads.head(encoder.block([(name, "a" * 32 if name == UNREAD else value) for name, value in fields]))
    block = encoder.block([(name, "b" * 32 if name == UNREAD else value) for name, value in fields])
    ended = None
    for _ in range(70):
        try:
            heads.head(block)
        except Http2Error as error:
            ended = error
            break
        block = bytes(octet + 1 if 0xBE <= octet < 0xFE else octet for octet in block)
    assert ended is not None
    assert len(hits) > 20


def test_an_unread_field_in_front_of_the_path_is_no_request() -> None:
    for place in range(4):
        encoder, heads = Encoder(), RequestHeads({UNREAD})
        fields = [(":method", "POST"), (":path", "/"), (":scheme", "http"), ("a", "b"), ("c", "d")]
        fields.insert(place, (UNREAD, "1"))
        outcomes = [outcome(heads, encoder.block(fields)) is Malformed for _ in range(3)]
        assert outcomes == [place < 3] * 3


def test_a_path_behind_an_unread_field_is_no_request(hits: list[bytes]) -> None:
    encoder, heads = Encoder(), RequestHeads({UNREAD})
    fields = [(":method", "POST"), (":path", "/"), (":scheme", "http")]
    for number in range(3):
        heads.head(encoder.block([*fields, (UNREAD, f"{number:09}"), ("a", "b")]))
    assert len(hits) == 2
    with pytest.raises(Malformed):
        heads.head(encoder.block([*fields, (UNREAD, "000000009"), (":authority", "")]))


def test_no_request_changes_the_table_all_the_same(hits: list[bytes]) -> None:
    """What was known by its block means something else then."""
    encoder, plain, heads = Encoder(), RequestHeads(), RequestHeads({UNREAD})
    fields = [(":method", "POST"), (":path", "/"), (":scheme", "http")]
    blocks = [encoder.block([*fields, ("a", str(number))]) for number in range(9)]
    blocks += [encoder.block([*fields, (UNREAD, f"{number:09}"), ("a", "8")]) for number in range(2)]
    known = encoder.block([*fields, ("a", "8")])
    blocks += [known, known, encoder.block([*fields, (UNREAD, "000000009"), (":authority", "")]), known]
    for block in blocks:
        assert outcome(heads, block) == outcome(plain, block)
    assert hits == [blocks[10]]
    assert outcome(heads, known)[-1] == {}


def test_what_is_too_old_for_an_octet_is_not_compared(hits: list[bytes]) -> None:
    """Though none of those that made it so old was a request."""
    encoder, plain, heads = Encoder(), RequestHeads(), RequestHeads({UNREAD})
    fields = [(":method", "POST"), (":path", "/"), (":scheme", "http"), ("a", "b")]
    for number in range(100):
        last = ("c", "d") if number < 2 else (":authority", "")
        block = encoder.block([*fields, (UNREAD, f"{number:09}"), last])
        if block[3] == 0xFF:
            break
        assert outcome(heads, block) == outcome(plain, block)
    assert number > 60
    block = b"\x83\x84\x86\xfe\x7e\x09000000009\x90"
    assert outcome(heads, block) == outcome(plain, block)


def test_long_heads_are_not_kept(hits: list[bytes]) -> None:
    encoder, heads = Encoder(), RequestHeads({UNREAD})
    for number in range(20):
        fields = [*call(number, random.Random(number)), ("x-long", "l" * 3_000), ("x-last", "1")]
        assert heads.head(encoder.block(fields)) is not None
    assert hits == []
    assert MAX_KIND_BYTES < 3_000


@pytest.mark.parametrize(("letters", "is_kept"), [(100, True), (1_000, False)])
def test_heads_with_a_long_last_field_are_not_kept(letters: int, is_kept: bool, hits: list[bytes]) -> None:
    encoder, heads = Encoder(), RequestHeads({UNREAD})
    fields = [(":method", "POST"), (":path", "/"), (":scheme", "http"), ("a", "b")]
    found = [
        heads.head(encoder.block([*fields, (UNREAD, f"{number:09}"), ("c", "d" * letters)]))
        for number in range(4)
    ]
    assert len(hits) == 3
    assert (found[3] is found[2]) == is_kept
