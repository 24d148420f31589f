"""Acknowledgements without requests: what each is told, and when they have to be requests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from mqspark.broker.pop.ackrun import AckedTogether, AckRun
from mqspark.broker.stats.rpctimes import Rpc
from mqspark.errors import StoreReadOnly
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.receipts import Receipt
from tests.unit.auth_kit import authority
from tests.unit.broker_kit import SEND, Bench, send_ext
from tests.unit.pop_kit import ACK, INVISIBLE_MS, Popped, pass_time, pop, put, settle


class Ended(list[str]):
    pass


class Noted(AckRun):
    def __init__(self, acks: Iterable[AckedTogether], ended: Ended) -> None:
        super().__init__(acks)
        self._ended = ended

    def done(self) -> None:
        self._ended.append("done")


def run_of(bench: Bench, popped: list[Popped]) -> tuple[AckRun, Ended]:
    ended = Ended()
    together: dict[tuple[str, Receipt], AckedTogether] = {}
    for number, each in enumerate(popped):
        receipt = each.receipt._replace(offset=-1)
        acked = together.setdefault((each.topic, receipt), AckedTogether(each.topic, "CG", receipt, [], []))
        acked.numbers.append(number)
        acked.offsets.append(each.receipt.offset)
    run = Noted(together.values(), ended)
    assert bench.broker.acknowledge(bench.peer().session, run)
    return run, ended


def test_each_of_a_run_has_its_own_answer(bench: Bench) -> None:
    put(bench, *"abcd")
    popped = pop(bench, bench.peer())
    wrong = [
        popped[1]._replace(topic="Nowhere"),
        popped[1]._replace(receipt=popped[1].receipt._replace(offset=9)),
        popped[1]._replace(receipt=popped[1].receipt._replace(revive_queue=77)),
    ]
    run, ended = run_of(bench, [popped[0], *wrong, popped[2]])
    assert [numbers for _, numbers in run.waiting] == [[0], [4]]
    assert ended == []
    settle(bench)
    assert (run.waiting, ended) == ([], ["done"])
    assert {number: answer.code for number, answer in run.answers.items()} == {
        1: ResponseCode.TOPIC_NOT_EXIST,
        2: ResponseCode.NO_MESSAGE,
        3: ResponseCode.MESSAGE_ILLEGAL,
    }
    counted = dict(bench.broker.state.stats.rpc)
    assert counted[Rpc(ACK, ResponseCode.SUCCESS, waited=False)].count == 2
    assert counted[Rpc(ACK, ResponseCode.NO_MESSAGE, waited=False)].count == 1
    pass_time(bench, INVISIBLE_MS + 5_000)
    assert [each.body for each in pop(bench, bench.peer())] == [b"b", b"d"]


def test_what_a_busy_broker_refuses_is_not_acknowledged(tmp_path: Path) -> None:
    """Though its record is there, and would take it."""
    bench = Bench(tmp_path, send_thread_pool_queue_capacity=1)
    put(bench, *"ab")
    popped = pop(bench, bench.peer())
    first, _ = run_of(bench, popped[:1])
    bench.peer().give(SEND, send_ext("T", 0, ""), b"c")
    second, _ = run_of(bench, popped[1:])
    assert [answer.code for answer in second.answers.values()] == [ResponseCode.SYSTEM_BUSY]
    settle(bench)
    assert first.answers == {}
    pass_time(bench, INVISIBLE_MS + 5_000)
    bodies = [each.body for each in pop(bench, bench.peer())]
    assert b"b" in bodies
    assert b"a" not in bodies


def test_an_ordered_run_is_answered_at_once(bench: Bench) -> None:
    put(bench, *"ab")
    popped = pop(bench, bench.peer(), order="true")
    run, ended = run_of(bench, popped)
    assert (run.answers, run.waiting, ended) == ({}, [], [])
    assert bench.broker.state.offsets.query("CG", "T", 0) == 2


def test_each_of_an_ordered_run_has_its_own_answer(bench: Bench) -> None:
    put(bench, *"abc")
    popped = pop(bench, bench.peer(), order="true", maxMsgNums="2")
    not_handed_out = popped[1]._replace(receipt=popped[1].receipt._replace(offset=2))
    run, _ = run_of(bench, [popped[0], not_handed_out, popped[1]])
    assert {number: answer.code for number, answer in run.answers.items()} == {
        1: ResponseCode.MESSAGE_ILLEGAL
    }
    assert bench.broker.state.offsets.query("CG", "T", 0) == 2


def test_a_run_waits_for_all_its_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True)
    put(bench, *"ab")
    peer = bench.peer()
    popped = [*pop(bench, peer, maxMsgNums="1"), *pop(bench, peer, maxMsgNums="1")]
    run, ended = run_of(bench, popped)
    bench.broker.turn()
    assert ended == []
    bench.flush()
    assert (run.answers, ended) == ({}, ["done"])


def test_what_is_not_written_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bench, *"ab")
    popped = pop(bench, bench.peer())
    run, ended = run_of(bench, popped)

    def refuse(*_: object) -> None:
        raise StoreReadOnly("the disk is full")

    monkeypatch.setattr(bench.broker.state.writer, "put_timed", refuse)
    settle(bench)
    assert ended == ["done"]
    assert {(each.code, each.remark) for each in run.answers.values()} == {
        (
            ResponseCode.SYSTEM_ERROR,
            "the acknowledgement could not be stored: the store accepts no writes: the disk is full",
        )
    }
    assert [*run.answers] == [0, 1]


def test_a_store_that_fails_refuses_what_waits(bench: Bench) -> None:
    put(bench, "a")
    popped = pop(bench, bench.peer())
    run, ended = run_of(bench, popped)
    bench.broker.pop.before_commit()
    bench.broker.acks.fail("the store failed: EIO")
    assert ended == ["done"]
    (answer,) = run.answers.values()
    assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "the store failed: EIO")


def test_who_stands_around_requests_sees_them(bench: Bench, tmp_path: Path) -> None:
    run = Noted([], Ended())
    assert bench.broker.acknowledge(bench.peer().session, run)
    ack = bench.broker.handlers[ACK]
    bench.broker.handlers = {**bench.broker.handlers, ACK: lambda session, command: ack(session, command)}
    assert not bench.broker.acknowledge(bench.peer().session, run)
    guarded = Bench(tmp_path / "users", new_authority=lambda: authority(tmp_path / "auth"))
    assert not guarded.broker.acknowledge(guarded.peer().session, run)


def test_runs_of_one_pop_become_one_record(bench: Bench) -> None:
    put(bench, *"abcd")
    popped = pop(bench, bench.peer())
    before = bench.store.appender.put_count
    wrong = popped[0]._replace(receipt=popped[0].receipt._replace(offset=9))
    runs = [run_of(bench, [each]) for each in (popped[0], popped[2], wrong, popped[2], popped[3])]
    assert [len(run.waiting) for run, _ in runs] == [1, 1, 0, 1, 1]
    assert runs[2][0].answers[0].code == ResponseCode.NO_MESSAGE
    settle(bench)
    assert [ended for _, ended in runs] == [["done"], ["done"], [], ["done"], ["done"]]
    assert bench.store.appender.put_count == before + 1
    assert dict(bench.broker.state.stats.rpc)[Rpc(ACK, ResponseCode.SUCCESS, waited=False)].count == 4
    pass_time(bench, INVISIBLE_MS + 5_000)
    assert [each.body for each in pop(bench, bench.peer())] == [b"b"]


def test_a_record_has_no_more_offsets_than_a_check_point(bench: Bench) -> None:
    put(bench, *"a" * 100)
    (first, *_) = pop(bench, bench.peer())
    before = bench.store.appender.put_count
    wanted = [first._replace(receipt=first.receipt._replace(offset=offset)) for offset in range(100)]
    runs = [run_of(bench, [each]) for each in wanted]
    settle(bench)
    assert all(ended == ["done"] and not run.answers for run, ended in runs)
    assert bench.store.appender.put_count == before + 2


def test_a_busy_broker_refuses_more_of_a_pop(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sync=True, send_thread_pool_queue_capacity=1)
    put(bench, *"ab")
    popped = pop(bench, bench.peer())
    taken, _ = run_of(bench, popped[:1])
    bench.peer().give(SEND, send_ext("T", 0), b"c")
    refused, _ = run_of(bench, popped[1:])
    assert (len(taken.waiting), len(refused.waiting)) == (1, 0)
    assert refused.answers[0].code == ResponseCode.SYSTEM_BUSY
