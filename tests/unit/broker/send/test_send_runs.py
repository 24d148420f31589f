"""When plain sends are taken in runs, and when each becomes a command; and what a run of answers counts for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.base.clock import SystemClock
from mqspark.broker.send.sendruns import FILES_AT_ONCE
from mqspark.broker.state.acks import Acks
from mqspark.broker.stats.rpctimes import Rpc, RpcTimes
from mqspark.message import BORN_HOST_V6, STORE_HOST_V6
from mqspark.protocol import command as commands
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import SentFrames, encode_request, send_response_frame
from mqspark.protocol.connection import Connection
from mqspark.protocol.layouts import HeaderLayouts
from mqspark.protocol.session import Session
from mqspark.record.recordlayout import HEADS, HEADS_OF_RUNS
from tests.support.clocks import ManualClock
from tests.support.extension_examples import KeysRequired
from tests.unit.auth_kit import SignedPeer, authority
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext
from tests.unit.static_kit import Pair, mapping, part
from tests.unit.test_extensions import having

WAIT = "WAIT\x01true\x02"


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> HeaderLayouts:
    layouts = HeaderLayouts(learning_cost=0)
    monkeypatch.setattr(commands, "layouts", layouts)
    return layouts


def frame(number: int, topic: str = "T", around: str = WAIT, **more: str) -> bytes:
    ext = send_ext(topic, 0, f"UNIQ_KEY\x017F0000010BAD18B4AAC2{number:012}\x02{around}", **more)
    return encode_request(SEND, 100 + number, ext, b"body")


def taken(peer: Peer, frames: Iterator[bytes] | list[bytes]) -> int:
    """How many frames were taken in runs, each frame being a read; all are answered with success."""
    count = 0
    for each in frames:
        count += peer.give_bytes(each)
        peer.core.turn()
        (answer,) = peer.heard()
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    return count


def of_bench(directory: Path, around: str = WAIT, **settings: Any) -> int:
    bench = Bench(directory, **settings)
    count = taken(bench.peer(), [frame(n, around=around) for n in range(6)])
    assert len(bench.records("T")) == 6
    bench.close()
    return count


def test_plain_sends_are_taken_from_the_third_on(tmp_path: Path) -> None:
    assert of_bench(tmp_path) == 4


def test_few_queues_get_their_first_file_before_the_time_is_looked_at(bench: Bench, peer: Peer) -> None:
    bench.broker.state.topics.put(TopicConfig("T", 10, 10, 6))
    taken(peer, [frame(number) for number in range(3)])
    read = b"".join(frame(10 + queue_id, e=str(queue_id)) for queue_id in range(10))
    before = bench.store.table.files_made
    assert 0 < bench.broker.take(peer.session, read, 0) < len(read)
    assert bench.store.table.files_made == before + FILES_AT_ONCE
    bench.broker.turn()


@pytest.mark.parametrize(
    "settings",
    [
        {"extensions": having(KeysRequired())},
        {"store_settings": {"enabled_append_prop_crc": True}},
        {"trace_on": False},
        {"start_accept_send_request_time_stamp": 1},
    ],
    ids=["extensions", "enabledAppendPropCRC", "answers without a trace", "startAcceptSendRequestTimeStamp"],
)
def test_what_makes_no_message_plain(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert of_bench(tmp_path, **settings) == 0


@pytest.mark.parametrize(
    "around",
    [
        "INNER_MULTI_DISPATCH\x01%LMQ%a\x02",
        "__LITE_TOPIC\x01a\x02",
        "TRAN_MSG\x01false\x02",
        "KEYS\x01a_b\x02",
        "DELAY\x010\x02",
        "__SHARDINGKEY\x01s\x02",
    ],
)
def test_messages_with_a_name_that_may_concern_the_broker(tmp_path: Path, around: str) -> None:
    assert (
        of_bench(tmp_path, around, store_settings={"enable_multi_dispatch": True} if "LMQ" in around else {})
        == 0
    )


def test_messages_of_users(tmp_path: Path) -> None:
    """Every request is judged, and those of nobody are refused."""
    bench = Bench(tmp_path, new_authority=lambda: authority(tmp_path / "auth"))
    signer = SignedPeer(bench.peer(), "root", "root-password").signer
    peer, opaque = bench.peer(), 0
    for number in range(6):
        ext = send_ext("T", 0, f"UNIQ_KEY\x017F0000010BAD18B4AAC2{number:012}\x02{WAIT}")
        for fields in (ext, signer.signed(ext, b"body")):
            opaque += 1
            assert peer.give_bytes(encode_request(SEND, 100 + opaque, fields, b"body")) == 0


def test_traced_sends(tmp_path: Path) -> None:
    """Whoever puts something around the handler of sends sees each of them."""
    bench, seen = Bench(tmp_path), []

    def around(handler: Callable[..., Any]) -> Callable[..., Any]:
        return lambda session, command: (seen.append(command.opaque), handler(session, command))[1]

    peer = bench.peer()
    assert taken(peer, [frame(n) for n in range(4)]) == 2
    bench.broker.serve({**bench.broker.handlers, SEND: around(bench.broker.handlers[SEND])})
    assert taken(peer, [frame(n) for n in range(4, 8)]) == 0
    assert len(seen) == 4


def test_static_topics(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    peer = pair.sides["b-a"].peer
    assert taken(peer, [frame(n) for n in range(4)]) == 2
    assert pair.put("b-a", mapping("b-a", {0: [part("b-a", 0)]})).code == 0
    assert taken(peer, [frame(n) for n in range(4, 8)]) == 0


def test_the_topic_for_records_of_foreign_acting_slaves(tmp_path: Path) -> None:
    bench = Bench(tmp_path, enable_slave_acting_master=True)
    foreign = bench.broker.requests.sends.foreign
    assert foreign is not None
    peer = bench.peer()
    assert sum(peer.give_bytes(frame(n, foreign.topic)) for n in range(6)) == 0
    bench.broker.turn()
    assert len(peer.heard()) == 6
    assert taken(peer, [frame(n) for n in range(4)]) == 2


@pytest.mark.parametrize("sync", [False, True])
def test_senders_that_do_not_wait_are_answered_when_it_is_written(tmp_path: Path, sync: bool) -> None:
    bench = Bench(tmp_path, sync=sync)
    peer = bench.peer()
    assert taken(peer, [frame(n, around="WAIT\x01false\x02") for n in range(4)]) == 2
    assert peer.give_bytes(b"".join(frame(n, around="WAIT\x01false\x02") for n in range(4, 14))) == 10
    assert len(bench.broker.acks) == 0
    bench.broker.turn()
    assert [each.opaque for each in peer.heard()] == [*range(104, 114)]
    bench.housekeeping()
    sent = dict(bench.broker.state.stats.rpc)[Rpc(SEND, 0, waited=False)]
    assert sent.count == 14


def test_runs_that_come_while_a_sync_runs_are_answered_by_the_next_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    peer, pipeline, acks = bench.peer(), bench.store.pipeline, bench.broker.acks
    for number in range(3):
        peer.give_bytes(frame(number))
    bench.broker.turn()
    bench.flush()
    assert len(peer.heard()) == 3
    assert peer.give_bytes(frame(10)) == 1
    bench.broker.turn_taken()
    job = pipeline.begin_flush()
    assert job is not None
    for number in (11, 12):
        assert peer.give_bytes(frame(number)) == 1
        bench.broker.turn_taken()
        bench.clock.advance(7)
    assert peer.give_bytes(frame(13, around="WAIT\x01false\x02")) == 0
    assert peer.heard() == []
    job.run()
    bench.broker.progress(pipeline.end_flush(job))
    assert [each.opaque for each in peer.heard()] == [110]
    bench.broker.turn()
    assert [each.opaque for each in peer.heard()] == [113], "it waits for no sync"
    bench.flush()
    assert [each.opaque for each in peer.heard()] == [111, 112]
    assert acks.took_ms == 14, "from its own turn on"
    assert len(bench.records("T")) == 7


def test_a_store_that_fails_answers_each_message_of_a_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    peer = bench.peer()
    for number in range(3):
        peer.ask(SEND, send_ext("T", 0, f"UNIQ_KEY\x017F0000010BAD18B4AAC2{number:012}\x02{WAIT}"), b"body")
    peer.give_bytes(b"".join(frame(n) for n in range(10, 20)))
    bench.broker.turn()
    bench.broker.acks.fail("the store failed: EIO")
    failed = peer.heard()
    assert [each.opaque for each in failed] == [*range(110, 120)]
    assert {each.code for each in failed} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert [each.ext["queueOffset"] for each in failed] == [str(n) for n in range(3, 13)]
    assert len(bench.broker.acks) == 0


# --- answers in runs --------------------------------------------------------------------------------------------


def run_of(*opaques: int) -> tuple[int, bytes]:
    return len(opaques), b"".join(send_response_frame(n, "ID", 0, n) for n in opaques)


def test_a_run_counts_its_messages(clock: ManualClock) -> None:
    rpc = RpcTimes(clock)
    acks, session = Acks(clock, rpc), Session(1, "127.0.0.1", 1, [])
    acks.add_run(30, session, *run_of(1, 2, 3), waits=True)
    acks.waiting.append((40, session, send_response_frame(4, "ID", 0, 4)))
    acks.add_run(50, session, *run_of(5), waits=True)
    acks.end_turn()
    acks.add_run(90, session, *run_of(6, 7, 8, 9), waits=True)
    acks.end_turn()
    assert len(acks) == 9
    acks.check_busy(10)
    with pytest.raises(Exception, match="OVERLOAD"):
        acks.check_busy(9)
    clock.advance(15)
    acks.release(29)
    assert len(acks) == 9
    acks.release(40)
    assert len(acks) == 5
    assert [each.opaque for each in Connection().receive_data(b"".join(session.take()))] == [1, 2, 3, 4]
    acks.release(90)
    assert [each.opaque for each in Connection().receive_data(b"".join(session.take()))] == [5, 6, 7, 8, 9]
    assert len(acks) == 0
    assert dict(rpc)[Rpc(RequestCode.SEND_MESSAGE_V2, 0, waited=False)].count == 9
    acks.times.end_period()
    assert "[10~50ms]:9" in acks.times.classes()


def test_runs_that_do_not_wait_wait_when_nothing_can_be_written() -> None:
    acks, session = Acks(SystemClock()), Session(1, "127.0.0.1", 1, [])
    acks.add_run(30, session, *run_of(1, 2, 3), waits=False)
    acks.add_run(40, session, *run_of(4), waits=False)
    assert len(acks) == 0
    acks.release_unsafe(written=False)
    assert len(acks) == 4
    acks.end_turn()
    acks.expire(-1, ResponseCode.FLUSH_DISK_TIMEOUT, "late")
    late = Connection().receive_data(b"".join(session.take()))
    assert [(each.opaque, each.code) for each in late] == [
        (n, ResponseCode.FLUSH_DISK_TIMEOUT) for n in (1, 2, 3, 4)
    ]
    assert len(acks) == 0


def test_answers_of_a_run_are_those_of_its_messages() -> None:
    sent = SentFrames("DefaultRegion", "7F00000100002A9F")
    run = [(1 << n % 50, n % 9, n * 7919, b"k" * (n + 1), n) for n in range(600)]
    each = [sent.frame(opaque, at, queue, offset, key.decode()) for at, queue, offset, key, opaque in run]
    assert sent.frames(run) == sent.frames(run) == b"".join(each)


@pytest.mark.parametrize("flags", HEADS)
def test_heads_of_runs_are_those_of_records(flags: int) -> None:
    pack_head, pack_alike = HEADS_OF_RUNS[flags]
    born = bytes(range(20 if flags & BORN_HOST_V6 else 8))
    store = bytes(range(100, 120 if flags & STORE_HOST_V6 else 108))
    whole = HEADS[flags].pack(1, -2, 3, 4, 5, 6, 7, 8, 9, born, 10, store, 11, 12, 13)
    assert pack_head(1, -2, 3, 4, 5, 6, 7, 8, 9, pack_alike(born, 10, store, 11, 12), 13) == whole


def test_sizes_are_counted_as_one_by_one(bench: Bench) -> None:
    sizes = [1, 1024, 1025, 4096, 4097, 1 << 20, 5]
    found = []
    for name in "AB":
        topic = bench.broker.state.topics.put(TopicConfig(topic_name=name))
        for run in [sizes] if name == "A" else [[size] for size in sizes]:
            topic.count_run(run)
        found.append((topic.put_bytes, topic.up_to_1k, topic.up_to_4k, topic.counted, topic.put_count))
    assert found[0] == found[1] == (sum(sizes), 3, 2, 2, len(sizes))
