"""QUERY_MESSAGE (12): messages by key and by unique key."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mqspark.broker.pull import lookups
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.record.record import decode_records
from mqspark.store import reads
from tests.unit.broker_kit import Bench, Peer, send_ext

SEND = RequestCode.SEND_MESSAGE_V2


def query(peer: Peer, key: str, max_num: int = 32, *, unique: bool | None = False, **more: str) -> Command:
    ext = {
        "topic": "T",
        "key": key,
        "maxNum": str(max_num),
        "beginTimestamp": "0",
        "endTimestamp": str((1 << 63) - 1),
    }
    if unique is not None:
        ext["_UNIQUE_KEY_QUERY"] = "true" if unique else "false"
    return peer.ask(RequestCode.QUERY_MESSAGE, {**ext, **more})


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [message.body for message in decode_records(answer.body)]


def send(peer: Peer, count: int) -> None:
    for n in range(count):
        peer.ask(SEND, send_ext(properties=f"UNIQ_KEY\x01U{n}\x02KEYS\x01order-{n} all\x02"), b"%d" % n)


def test_by_key_and_by_unique_key(peer: Peer) -> None:
    send(peer, 40)
    assert bodies(query(peer, "order-7")) == [b"7"]
    assert bodies(query(peer, "U7", unique=True)) == [b"7"]
    assert bodies(query(peer, "all", 3)) == [b"37", b"38", b"39"]
    assert bodies(query(peer, "all", 1, unique=True)) == [b"%d" % n for n in range(8, 40)], (
        "defaultQueryMaxNum"
    )
    assert bodies(query(peer, "order-7", unique=None)) == [b"7"]
    send(peer, 40)
    assert len(bodies(query(peer, "all", 1000))) == 64, "maxMsgsNumBatch"


def test_older_messages_come_before_a_position(peer: Peer) -> None:
    send(peer, 70)
    newest = decode_records(query(peer, "all", 1000).body)
    older = query(peer, "all", 1000, mqsparkBefore=str(newest[0].physical_offset))
    assert bodies(older) == [b"%d" % number for number in range(6)]
    first = decode_records(older.body)[0].physical_offset
    none = query(peer, "all", mqsparkBefore=str(first))
    assert none.code == ResponseCode.QUERY_NOT_FOUND


def test_kinds_of_keys(peer: Peer) -> None:
    send(peer, 1)
    found = [query(peer, "order-0", indexType=kind).code for kind in ("K", "U", "T")]
    assert found == [0, 0, ResponseCode.QUERY_NOT_FOUND]


def test_by_tag(peer: Peer) -> None:
    for number, tag in enumerate(("red", "blue", "red", "", "dark red", "rot und grün")):
        text = f"KEYS\x01{number} red\x02" + (f"TAGS\x01{tag}\x02" if tag else "")
        peer.ask(SEND, send_ext(properties=text), b"%d" % number)
    assert bodies(query(peer, "red", indexType="T")) == [b"0", b"2"]
    assert bodies(query(peer, "red", 1, indexType="T")) == [b"2"]
    assert bodies(query(peer, "dark red", indexType="T")) == [b"4"]
    assert bodies(query(peer, "rot und grün", indexType="T")) == [b"5"]
    assert len(bodies(query(peer, "red"))) == 6, "a tag is no key"
    assert query(peer, "green", indexType="T").code == ResponseCode.QUERY_NOT_FOUND
    assert query(peer, "red", indexType="T", topic="Other").code == ResponseCode.QUERY_NOT_FOUND


def test_the_answer_says_how_far_the_index_is(bench: Bench, peer: Peer) -> None:
    send(peer, 3)
    sent_ms = bench.clock.now_ms()
    last = int(peer.ask(SEND, send_ext(properties="KEYS\x01z"), b"z").ext["msgId"][16:], 16)
    assert query(peer, "order-1").ext == {
        "indexLastUpdateTimestamp": str(sent_ms),
        "indexLastUpdatePhyoffset": str(last),
    }


def test_nothing_found(peer: Peer) -> None:
    send(peer, 3)
    long_ago = {"beginTimestamp": "0", "endTimestamp": "1000"}
    for answer in (
        query(peer, "nokey"),
        query(peer, "order-1", topic="U"),
        query(peer, "order-1", **long_ago),
    ):
        assert (answer.code, answer.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
        assert answer.remark == "can not find message, maybe time range not correct"
        assert answer.ext == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


@pytest.mark.parametrize("max_num", [0, -1])
def test_no_messages_asked_for(peer: Peer, max_num: int) -> None:
    send(peer, 3)
    assert query(peer, "all", max_num).code == ResponseCode.QUERY_NOT_FOUND


def test_more_than_a_frame_holds(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    send(peer, 20)
    monkeypatch.setattr(lookups, "_MAX_QUERY_BODY_BYTES", 500)
    found = query(peer, "all")
    assert len(found.body) <= 500
    assert bodies(found)[-1] == b"19"
    monkeypatch.setattr(lookups, "_MAX_QUERY_BODY_BYTES", 5)
    assert bodies(query(peer, "all")) == [b"19"]


def test_after_a_restart(bench: Bench) -> None:
    send(bench.peer(), 5)
    bench.reopen()
    assert bodies(query(bench.peer(), "order-3")) == [b"3"]


# "Aa" and "BB" have one hash in Java, so AaTopic#BB and BBTopic#Aa have one, and so have all words of ten of them.
ALIKE = ["".join(parts) for parts in itertools.product(("Aa", "BB"), repeat=10)]


def test_only_what_was_asked_for_comes_of_one_hash(peer: Peer) -> None:
    for topic, key in (("AaTopic", "BB"), ("BBTopic", "Aa"), ("AaTopic", "Aa"), ("BBTopic", "BB")):
        text = f"UNIQ_KEY\x01{key}U\x02KEYS\x01x {key}\x02TAGS\x01{key}T\x02"
        peer.ask(SEND, send_ext(topic, properties=text), f"{topic} {key}".encode())
    assert bodies(query(peer, "BB", topic="AaTopic")) == [b"AaTopic BB"]
    assert bodies(query(peer, "Aa", topic="BBTopic")) == [b"BBTopic Aa"]
    assert bodies(query(peer, "AaU", topic="AaTopic", unique=True)) == [b"AaTopic Aa"]
    assert bodies(query(peer, "BBU", topic="BBTopic", indexType="U")) == [b"BBTopic BB"]
    assert bodies(query(peer, "AaT", topic="BBTopic", indexType="T")) == [b"BBTopic Aa"]
    for kind in ("K", "U"):
        missed = query(peer, "T#AaT", topic="BBTopic", indexType=kind)
        assert missed.code == ResponseCode.QUERY_NOT_FOUND, "the index has a tag as T#tag"
    assert query(peer, "AaBB", topic="BBTopic").code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    ("name", "more"), [("KEYS", {}), ("UNIQ_KEY", {"unique": True}), ("TAGS", {"indexType": "T"})]
)
def test_newer_records_of_the_same_hash_hide_none(peer: Peer, name: str, more: dict[str, Any]) -> None:
    for number, key in enumerate(ALIKE):
        peer.ask(SEND, send_ext(properties=f"{name}\x01{key}\x02"), b"%d" % number)
    for number in (0, 1, 500, len(ALIKE) - 1):
        assert bodies(query(peer, ALIKE[number], **more)) == [b"%d" % number]


def test_keys_that_are_another_ones_unique_key_do_not_hide_it(peer: Peer) -> None:
    peer.ask(SEND, send_ext(properties="UNIQ_KEY\x01U\x02"), b"meant")
    for _ in range(70):
        peer.ask(SEND, send_ext(properties="KEYS\x01U\x02"), b"pretends")
    assert b"meant" in bodies(query(peer, "U", unique=True))
    assert b"meant" in bodies(query(peer, "U", indexType="U"))


def test_a_query_that_would_compare_too_much_says_so(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, key in enumerate(ALIKE[:20]):
        peer.ask(SEND, send_ext(properties=f"KEYS\x01{key}\x02"), b"%d" % number)
    monkeypatch.setattr(reads, "MAX_COMPARED", 10)
    assert bodies(query(peer, ALIKE[15], 1)) == [b"15"]
    refused = query(peer, ALIKE[5], 1)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "over 10 records have keys of the same hash" in refused.remark


def test_other_requests_are_served_while_one_compares(bench: Bench) -> None:
    asker, other = bench.peer(), bench.peer()
    for key in ALIKE:
        asker.ask(SEND, send_ext(properties=f"KEYS\x01{key}\x02"), b"x")
    ext = {"topic": "T", "key": ALIKE[0], "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    asker.give(RequestCode.QUERY_MESSAGE, ext)
    slices = 0
    while bench.broker.work():
        slices += 1
    assert slices > len(ALIKE) // 100
    assert len(asker.heard()) == 1
    assert bodies(query(other, ALIKE[1])) == [b"x"]
