"""Header blocks against the examples of RFC 7541, appendix C, and the bounds of their decoder."""

from __future__ import annotations

import random

import pytest

from mqspark.errors import ProtocolError
from mqspark_server.net.http2.headerblocks import (
    FIELD_BYTES,
    TABLE_BYTES,
    HeaderDecoder,
    is_sound,
    literal_block,
)
from mqspark_server.net.http2.huffman import WORDS, huffman_decoded

ENOUGH = 1 << 16
FIRST = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
SECOND = [*FIRST, ("cache-control", "no-cache")]
THIRD = [
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
]
REQUESTS = {
    "C.3": ("828684410f7777772e6578616d706c652e636f6d", "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565"),
    "C.4": ("828684418cf1e3c2e5f23a6ba0ab90f4ff", "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"),
}  # fmt: skip


class Decoder:
    """Fields as names and values."""

    def __init__(self, most_bytes: int) -> None:
        self._decoder = HeaderDecoder(most_bytes)

    def decode(self, block: bytes) -> list[tuple[str, str]] | None:
        fields = self._decoder.decode(block)
        return None if fields is None else [(name, value) for name, value, _, _ in fields]

    @property
    def changes(self) -> int:
        return self._decoder.changes


def huffman_encoded(text: bytes) -> bytes:
    bits = "".join(f"{WORDS[octet][0]:0{WORDS[octet][1]}b}" for octet in text)
    bits += "1" * (-len(bits) % 8)
    return int(bits or "0", 2).to_bytes(len(bits) // 8, "big")


@pytest.mark.parametrize("section", REQUESTS)
def test_requests_of_the_specification(section: str) -> None:
    decoder = Decoder(ENOUGH)
    for block, fields in zip(REQUESTS[section], (FIRST, SECOND, THIRD), strict=True):
        assert decoder.decode(bytes.fromhex(block)) == fields


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", ("custom-key", "custom-header")),
        ("040c2f73616d706c652f70617468", (":path", "/sample/path")),
        ("100870617373776f726406736563726574", ("password", "secret")),
        ("82", (":method", "GET")),
    ],
    ids=["C.2.1", "C.2.2", "C.2.3", "C.2.4"],
)
def test_single_fields_of_the_specification(block: str, field: tuple[str, str]) -> None:
    assert Decoder(ENOUGH).decode(bytes.fromhex(block)) == [field]


def test_answers_of_the_specification_whose_table_of_256_bytes_evicts() -> None:
    """C.6, behind a change of the table's size to 256."""
    decoder = Decoder(ENOUGH)
    blocks = (
        "3fe101488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82"
        "ae43d3",
        "4883640effc1c0bf",
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af2708"
        "7f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
    )  # fmt: skip
    read = [dict(decoder.decode(bytes.fromhex(block)) or ()) for block in blocks]
    assert [each[":status"] for each in read] == ["302", "307", "200"]
    assert {each["location"] for each in read} == {"https://www.example.com"}
    assert read[2]["content-encoding"] == "gzip"
    assert read[2]["set-cookie"] == "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"


def test_every_byte_has_its_word_and_every_string_comes_back() -> None:
    chance = random.Random(7541)
    for octet in range(256):
        assert huffman_decoded(huffman_encoded(bytes((octet,)))) == chr(octet)
    for length in range(60):
        text = chance.randbytes(length)
        assert huffman_decoded(huffman_encoded(text)) == text.decode("latin-1")


@pytest.mark.parametrize(
    "coded",
    [b"\xff\xff\xff\xff", b"\xff", b"\x00", huffman_encoded(b"a") + b"\xff"],
    ids=["end-of-string", "only-padding", "padding-of-zeros", "padding-of-a-byte"],
)
def test_what_is_no_huffman_code_is_refused(coded: bytes) -> None:
    with pytest.raises(ProtocolError):
        huffman_decoded(coded)


@pytest.mark.parametrize(
    "block",
    ["80", "ff80808080808001", "be", "7f", "400a6375", "4082", "0f", "3fe21f", "823f00", "00820000"],
)
def test_blocks_that_mean_nothing_are_refused(block: str) -> None:
    with pytest.raises(ProtocolError):
        Decoder(ENOUGH).decode(bytes.fromhex(block))


def test_the_table_is_bounded_and_a_field_larger_than_it_empties_it() -> None:
    decoder = Decoder(ENOUGH)
    value = "v" * (TABLE_BYTES // 4 - FIELD_BYTES - 1)
    for name in "abcde":
        decoder.decode(b"\x40" + literal_block([(name, value)])[1:])
    assert decoder.decode(bytes((0x80 | 62,))) == [("e", value)]
    assert decoder.decode(bytes((0x80 | 65,))) == [("b", value)]
    with pytest.raises(ProtocolError):
        decoder.decode(bytes((0x80 | 66,)))
    decoder.decode(b"\x40" + literal_block([("large", "v" * TABLE_BYTES)])[1:])
    with pytest.raises(ProtocolError):
        decoder.decode(bytes((0x80 | 62,)))


def test_a_list_that_is_too_long_is_read_and_not_kept() -> None:
    decoder = Decoder(1_000)
    field = ("name", "v" * 500)
    decoder.decode(b"\x40" + literal_block([field])[1:])
    assert decoder.decode(bytes((0x80 | 62,)) * 1_000) is None
    assert decoder.decode(bytes((0x80 | 62,))) == [field]


def test_a_block_says_whether_it_has_changed_the_table() -> None:
    decoder = Decoder(ENOUGH)
    decoder.decode(bytes.fromhex(REQUESTS["C.3"][0]))
    before = decoder.changes
    decoder.decode(bytes.fromhex("828684be"))
    assert decoder.changes == before
    decoder.decode(bytes.fromhex("20"))
    assert decoder.changes > before


@pytest.mark.parametrize(
    ("name", "value", "is_fine"),
    [
        ("x-a", "v", True),
        ("x-a", "", True),
        ("x-a", "a b\tc\xe4", True),
        (":path", "/", True),
        ("te", "trailers", True),
        ("te", "gzip", False),
        ("", "v", False),
        (":", "v", False),
        ("X-A", "v", False),
        ("x a", "v", False),
        ("x:a", "v", False),
        ("x-a", " v", False),
        ("x-a", "v\t", False),
        ("x-a", "a\nb", False),
        ("x-a", "a\0b", False),
        ("connection", "close", False),
        ("transfer-encoding", "chunked", False),
    ],
)
def test_fields_that_no_message_may_have_are_known(name: str, value: str, is_fine: bool) -> None:
    assert is_sound(name, value) is is_fine
    assert HeaderDecoder(ENOUGH).decode(literal_block([(name, value)])) == [
        (name, value, len(name) + len(value) + FIELD_BYTES, is_fine)
    ]


def test_blocks_of_answers_are_read_as_they_were_written() -> None:
    fields = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-message", "m" * 1_000)]
    assert Decoder(ENOUGH).decode(literal_block(fields)) == fields
