"""QUERY_MESSAGE (12): messages by key and by unique key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.broker.pull import lookups
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.record import decode_records
from tests.unit.broker_kit import Bench, Peer, send_ext

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


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


def test_by_key_and_by_unique_key(bench: Bench) -> None:
    peer = bench.peer()
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


def test_kinds_of_keys(bench: Bench) -> None:
    peer = bench.peer()
    send(peer, 1)
    found = [query(peer, "order-0", indexType=kind).code for kind in ("K", "U", "T")]
    assert found == [0, 0, ResponseCode.QUERY_NOT_FOUND]


def test_by_tag(bench: Bench) -> None:
    peer = bench.peer()
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


def test_the_answer_says_how_far_the_index_is(bench: Bench) -> None:
    peer = bench.peer()
    send(peer, 3)
    sent_ms = bench.clock.now_ms()
    last = int(peer.ask(SEND, send_ext(properties="KEYS\x01z"), b"z").ext["msgId"][16:], 16)
    assert query(peer, "order-1").ext == {
        "indexLastUpdateTimestamp": str(sent_ms),
        "indexLastUpdatePhyoffset": str(last),
    }


def test_nothing_found(bench: Bench) -> None:
    peer = bench.peer()
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
def test_no_messages_asked_for(bench: Bench, max_num: int) -> None:
    peer = bench.peer()
    send(peer, 3)
    assert query(peer, "all", max_num).code == ResponseCode.QUERY_NOT_FOUND


def test_more_than_a_frame_holds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = bench.peer()
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
