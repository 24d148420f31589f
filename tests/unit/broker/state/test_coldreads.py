"""Flow control of reads of cold data, and whether the log is read ahead."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqspark.broker.pull import held_pulls
from mqspark.broker.pull.held_pulls import HOLD_MS
from mqspark.broker.state.coldreads import FORGET_MS, PERIOD_MS, ColdReads
from mqspark.protocol import fastjson
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.store.disk.residency import PAGE_BYTES, are_resident
from tests.support.invariants import validate
from tests.unit.broker.group.test_broker_clients import heartbeat
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext

KIB = 1 << 10
COLD = {"access_message_in_memory_hot_ratio": 0, "cold_data_flow_control_enable": True}
"""Everything counts as cold."""


def bench_of(path: Path, *, store: dict[str, Any] | None = None, **settings: Any) -> Bench:
    bench = Bench(path, store_settings={**COLD, **(store or {})}, **settings)
    peer = bench.peer()
    for queue_id in (0, 1):
        for number in range(40):
            assert peer.ask(SEND, send_ext("T", queue_id), b"%d" % number * KIB).code == 0
    return bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = bench_of(tmp_path, cg_cold_read_threshold=20 * KIB)
    yield bench
    validate(bench.broker)


def pull(peer: Peer, offset: int = 0, group: str = "CG", **more: Any) -> int:
    return peer.pull(offset=offset, consumerGroup=group, **more).code


def info(bench: Bench) -> Any:
    return fastjson.loads(bench.peer().ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO).body)


def pass_a_period(bench: Bench) -> None:
    bench.later(PERIOD_MS)


def as_push_consumer(bench: Bench, group: str = "CG") -> Peer:
    peer = bench.peer()
    heartbeat(peer, f"client of {group}", "T", group=group)
    return peer


def test_what_is_read_is_counted_by_group(bench: Bench, peer: Peer) -> None:
    assert pull(peer, maxMsgNums="4") == 0
    shown = info(bench)
    assert shown["runtimeTable"]["CG"]["coldAcc"] == shown["globalAcc"] > 4 * KIB
    assert shown["runtimeTable"]["CG"]["lastColdReadTimeMills"] == bench.clock.now_ms()
    assert shown["cgColdReadThreshold"] == 20 * KIB
    pass_a_period(bench)
    assert (info(bench)["runtimeTable"]["CG"]["coldAcc"], info(bench)["globalAcc"]) == (0, 0)
    bench.clock.advance(FORGET_MS)
    pass_a_period(bench)
    assert info(bench)["runtimeTable"] == {}


def test_a_push_consumer_is_refused_until_the_period_is_over(bench: Bench) -> None:
    peer = as_push_consumer(bench)
    offset = 0
    while (answer := peer.pull(offset=offset)).code == 0:
        offset = int(answer.ext["nextBeginOffset"])
    assert 0 < offset < 40
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark == "This consumer group is reading cold data. It has been flow control"
    assert pull(peer, offset, group="Other") == 0, "another group has a share of its own"
    pass_a_period(bench)
    assert pull(peer, offset) == 0


def test_what_is_not_cold_is_read_all_the_same(bench: Bench) -> None:
    peer = as_push_consumer(bench)
    while pull(peer) == 0:
        pass
    bench.store_config.access_message_in_memory_hot_ratio = 100
    assert pull(peer) == 0


def test_a_pull_consumer_waits_and_then_gets_one_message(bench: Bench, peer: Peer) -> None:
    assert pull(peer, maxMsgNums="24") == 0
    peer.give_pull(offset=24)
    bench.broker.turn()
    assert peer.heard() == []
    assert len(bench.broker.pulls.held) == 1
    validate(bench.broker)
    bench.later(HOLD_MS - 1)
    assert peer.heard() == []
    bench.later(1)
    (answer,) = peer.heard()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "25")
    assert len(bench.broker.pulls.held) == 0


def test_a_held_pull_of_a_closed_connection_is_dropped(bench: Bench, peer: Peer) -> None:
    assert pull(peer, maxMsgNums="24") == 0
    peer.give_pull(offset=24)
    bench.broker.turn()
    peer.disconnect()
    bench.later(HOLD_MS)
    assert len(bench.broker.pulls.held) == 0


def test_more_than_can_be_held_are_refused(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pulls, "MAX_HELD", 2)
    assert pull(peer, maxMsgNums="24") == 0
    for _ in range(2):
        peer.give_pull(offset=24)
    assert peer.pull(offset=24).code == ResponseCode.SYSTEM_BUSY


def test_all_groups_together_have_a_limit(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, global_cold_read_threshold=30 * KIB)
    one, two = as_push_consumer(bench, "A"), as_push_consumer(bench, "B")
    assert pull(two, group="B", maxMsgNums="1") == 0
    offset = 0
    while pull(one, offset, group="A") == 0:
        offset += 8
    assert pull(two, 1, group="B") == ResponseCode.SYSTEM_BUSY
    pass_a_period(bench)
    assert pull(two, 1, group="B") == 0


def test_without_the_setting_nothing_is_counted(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, store={"cold_data_flow_control_enable": False}, cg_cold_read_threshold=1)
    peer = as_push_consumer(bench)
    assert [pull(peer) for _ in range(5)] == [0] * 5
    assert info(bench)["runtimeTable"] == {}


@pytest.mark.parametrize("group", ["TOOLS_CONSUMER", "CID_RMQ_SYS_x"])
def test_groups_of_tools_are_not_limited(bench: Bench, peer: Peer, group: str) -> None:
    assert [pull(peer, group=group) for _ in range(5)] == [0] * 5
    assert info(bench)["globalAcc"] == 0


def test_a_filter_that_matches_nothing_reads_all_the_same(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, enable_property_filter=True, cg_cold_read_threshold=20 * KIB)
    peer = bench.peer()
    pull(peer, subscription="n > 5", expressionType="SQL92")
    assert info(bench)["globalAcc"] > 30 * KIB


def test_operators_set_thresholds(bench: Bench) -> None:
    peer = as_push_consumer(bench)
    assert peer.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, None, b"CG=1\nOther=5000\n").code == 0
    assert info(bench)["configTable"] == {"CG": 1, "Other": 5000}
    assert pull(peer, maxMsgNums="1") == 0
    assert pull(peer, 1) == ResponseCode.SYSTEM_BUSY
    assert peer.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, None, b"CG").code == 0
    assert peer.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, None, b"Nobody").code == 0
    for wrong in (b"../Other", b"O" * 300, b"\xff"):
        assert peer.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, None, wrong).code == 29
    assert info(bench)["configTable"] == {"Other": 5000}
    assert pull(peer, 1) == 0


@pytest.mark.parametrize(
    "body", [b"CG=many", b"CG=-1", b"CG=", b"../x=1", b"A=1\nB=x", b"\xff=1", b"CG=" + b"9" * 99]
)
def test_a_wrong_threshold_changes_nothing(bench: Bench, body: bytes) -> None:
    answer = bench.peer().ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, None, body)
    assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
    assert answer.remark
    assert info(bench)["configTable"] == {}


def test_thresholds_are_bounded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_statistics_bytes=40_000)
    body = "".join(f"group-{number}=1\n" for number in range(500)).encode()
    answer = bench.peer().ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, None, body)
    assert answer.code == ResponseCode.SYSTEM_BUSY, answer
    validate(bench.broker)


# --- thresholds that move ---


class Strategy:
    """Periods of reading."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.reads: ColdReads = bench.broker.state.cold_reads

    def period(self, **groups: int) -> dict[str, int]:
        """The thresholds after a period in which the groups read so much."""
        for group, bytes_ in groups.items():
            self.reads.served(group, bytes_)
        pass_a_period(self.bench)
        validate(self.bench.broker)
        table = self.reads.info().config_table
        return {name.removesuffix("||adaptive"): threshold for name, threshold in table.items()}


def strategy(path: Path, *, pid: bool) -> Strategy:
    return Strategy(
        Bench(
            path,
            store_settings=COLD,
            cg_cold_read_threshold=100,
            global_cold_read_threshold=1000,
            cold_ctr_strategy_enable=True,
            use_pid_cold_ctr_strategy=pid,
        )
    )


def test_a_group_that_uses_its_share_gets_more_while_there_is_room(tmp_path: Path) -> None:
    moves = strategy(tmp_path, pid=False)
    assert moves.period(A=99, B=100) == {"B": 150}
    assert moves.period(A=99, B=150) == {"B": 225}
    assert not moves.reads.must_wait("B")
    moves.reads.served("B", 225)
    assert moves.reads.must_wait("B")
    assert moves.period(A=2000) == {"B": 180}, "too much in all: what was raised is lowered"
    for _ in range(5):
        lowered = moves.period(A=2000)
    assert lowered == {"B": 100}, "but not below the threshold of all"
    moves.bench.clock.advance(FORGET_MS)
    assert moves.period() == {}


def test_a_threshold_of_an_operator_does_not_move(tmp_path: Path) -> None:
    moves = strategy(tmp_path, pid=False)
    moves.reads.set_threshold("A", 10)
    assert moves.period(A=50) == {"A": 10}


def test_by_the_last_ten_periods(tmp_path: Path) -> None:
    moves = strategy(tmp_path, pid=True)
    for _ in range(9):
        assert moves.period(A=150) == {}, "not enough is known yet"
    assert moves.period(A=150) == {"A": 150}
    for _ in range(12):
        lowered = moves.period(A=1, B=5000)
    assert lowered["A"] == 100
    moves.bench.config.cold_ctr_strategy_enable = False
    assert moves.period() == {}


# --- the kernel ---


def test_the_kernel_says_which_pages_are_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(64 * PAGE_BYTES))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 10, 5 * PAGE_BYTES)
        view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    places = np.array([7, 5 * PAGE_BYTES + 9, 6 * PAGE_BYTES, 63 * PAGE_BYTES], np.int64)
    assert are_resident(view, places).tolist() == [False, True, False, False]
    assert are_resident(view, places[:0]).tolist() == []


@pytest.mark.parametrize("asks", [True, False])
def test_what_is_in_memory_is_not_cold_if_the_kernel_is_asked(tmp_path: Path, asks: bool) -> None:
    bench = bench_of(tmp_path, store={"cold_data_scan_enable": asks})
    assert pull(bench.peer()) == 0
    assert (info(bench)["globalAcc"] == 0) is asks, "it was written a moment ago"


def advice(root: Path) -> set[str]:
    """Whether the kernel expects scattered reads of the log's maps, by its own words."""
    found = set()
    maps = Path("/proc/self/smaps").read_text()
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", maps, flags=re.MULTILINE):
        if str(root / "commitlog") in part.partition("\n")[0]:
            flags = re.search(r"^VmFlags: (.*)$", part, re.MULTILINE)
            assert flags is not None
            found.add("random" if "rr" in flags[1].split() else "normal")
    return found


def test_reading_ahead_is_switched_for_what_is_mapped_and_what_will_be(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    peer = bench.peer()

    def switch(mode: str) -> tuple[int, str | None]:
        answer = peer.ask(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": mode})
        return answer.code, answer.remark

    assert pull(peer) == 0
    assert advice(tmp_path) == {"normal"}
    assert switch("1") == (0, "set commitlog readahead mode success, mode: 1")
    assert advice(tmp_path) == {"random"}
    assert not bench.store_config.data_read_ahead_enable
    assert switch("0") == (0, "set commitlog readahead mode success, mode: 0")
    assert advice(tmp_path) == {"normal"}
    assert switch("2") == (29, "set commitlog readahead mode param value error")
    assert switch("-1") == (29, "set commitlog readahead mode param value error")
    assert switch("fast") == (1, "set commitlog readahead mode failed")
    empty = peer.ask(RequestCode.SET_COMMITLOG_READ_MODE)
    assert (empty.code, empty.remark) == (1, "set commitlog readahead mode param error")
    bench.store_settings["data_read_ahead_enable"] = False
    bench.reopen()
    assert pull(bench.peer()) == 0
    assert advice(tmp_path) == {"random"}
    change = b"dataReadAheadEnable=true\n"
    assert bench.peer().ask(RequestCode.UPDATE_BROKER_CONFIG, None, change).code == 0
    assert advice(tmp_path) == {"normal"}
