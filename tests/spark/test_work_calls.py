"""Functions on messages, without Spark: what becomes of each, in order or not, also when one kills its process."""

from __future__ import annotations

import datetime
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from mqspark.errors import ConfigError, MQError, NoRoute
from mqspark.message import MAX_PROPERTIES_BYTES, MessageQueue, decode_properties
from pyspark_pymq.work.evaluate import Evaluation
from pyspark_pymq.work.functions import ArrowFunction, RowFunction
from pyspark_pymq.work.isolated import DIED, Isolated
from pyspark_pymq.work.journal import REMEMBERED_MS, Journal, State, Trial
from pyspark_pymq.work.outcome import NAMES
from pyspark_pymq.work.retryqueues import Failed, RetryQueues, _encoded, properties_of
from pyspark_pymq.work.verdicts import (
    DEAD,
    DISCARDED,
    RETRY,
    Discard,
    Failure,
    Policy,
    RetryAfter,
    duration_ms,
)

RESULT = pa.struct([("n", pa.int64()), ("text", pa.string())])
POLICY = Policy.parse(3, "1s 10s")
UTC = datetime.UTC


def batch(numbers: Iterable[int], **columns: list[Any]) -> pa.RecordBatch:
    numbers = list(numbers)
    count = len(numbers)
    when = pa.array([datetime.datetime(2026, 1, 1, tzinfo=UTC)] * count, pa.timestamp("us", "UTC"))
    given: dict[str, Any] = {
        "key": [f"k{n}" for n in numbers],
        "value": [str(n).encode() for n in numbers],
        "topic": ["T"] * count,
        "partition": pa.array([0] * count, pa.int32()),
        "offset": numbers,
        "timestamp": when,
        "tags": pa.nulls(count, pa.string()),
        "broker": ["b"] * count,
        "bornTimestamp": when,
        "msgId": [f"id{n}" for n in numbers],
        "properties": pa.array([[("n", str(n))] for n in numbers], pa.map_(pa.string(), pa.string())),
        "attempt": pa.array([1] * count, pa.int32()),
        "place": [f"b:T:0:{n}" for n in numbers],
        "orderKey": pa.nulls(count, pa.string()),
        "retryOf": pa.nulls(count, pa.string()),
        "turn": pa.nulls(count, pa.int64()),
    }
    given |= {name: pa.array(values) for name, values in columns.items()}
    return pa.record_batch(given)


def outcomes(evaluation: Evaluation, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = pa.Table.from_batches(list(evaluation(iter(batches)))).to_pylist(maps_as_pydicts="strict")
    assert [set(row) - {"result"} for row in rows] == [set(rows[0]) - {"result"}] * len(rows)
    return rows


def by_kind(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["message"] is not None:
            found.setdefault(row["kind"], []).append(row["message"]["value"].decode())
    return found


def number(message: Any) -> dict[str, Any]:
    n = int(message.value)
    if n == 2:
        raise ValueError("two")
    if n == 3:
        raise RetryAfter(5)
    if n == 4:
        raise Discard
    if n == 5:
        return {"n": "no number"}
    if n == 6:
        return {"unknown": 1}
    return {"n": n, "text": message.properties["n"]}


def test_each_row_has_an_outcome_of_its_own() -> None:
    rows = outcomes(Evaluation(RowFunction(number, RESULT), POLICY, False), batch(range(9)))
    assert sum(row["count"] for row in rows) == 9
    assert [row["result"]["n"] for row in rows if row.get("result")] == [0, 1, 7, 8]
    assert by_kind(rows) == {RETRY: ["2", "3", "5", "6"], DISCARDED: ["4"]}
    delays = {row["message"]["value"]: row["delayMs"] for row in rows if row["kind"] == RETRY}
    assert delays == {b"2": 1000, b"3": 5000, b"5": 1000, b"6": 1000}
    last = outcomes(Evaluation(RowFunction(number, RESULT), POLICY, False), batch([2, 3], attempt=[3, 4]))
    assert by_kind(last) == {DEAD: ["2", "3"]}


@pytest.mark.parametrize("careful", [False, True])
def test_a_function_on_batches_is_halved_until_its_bad_rows_are_alone(careful: bool) -> None:
    def double(rows: pa.RecordBatch) -> pa.Table:
        numbers = [int(value) for value in rows.column("value").to_pylist()]
        if 5 in numbers:
            raise ValueError("five")
        errors = ["odd" if n == 3 else None for n in numbers]
        return pa.table({"n": [2 * n for n in numbers], "text": [str(n) for n in numbers], "error": errors})

    rows = outcomes(Evaluation(ArrowFunction(double, RESULT), POLICY, careful), batch(range(10)))
    assert sorted(row["result"]["n"] for row in rows if row.get("result")) == [0, 2, 4, 8, 12, 14, 16, 18]
    assert by_kind(rows) == {RETRY: ["3", "5"]}
    assert {row["errorText"] for row in rows if row["kind"] == RETRY} == {"odd", "five"}


def kill_at(*numbers: int) -> Callable[[Any], Any]:
    def function(message: Any) -> Any:
        if int(message.value) in numbers:
            os.kill(os.getpid(), signal.SIGSEGV)
        return {"n": int(message.value), "text": ""}

    return function


@pytest.mark.slow("ends many processes; that of a batch function is the fast twin")
def test_a_message_that_kills_its_process_is_found_and_no_other_is_repeated(tmp_path: Path) -> None:
    def noted(message: Any) -> Any:
        with (tmp_path / "calls").open("a") as file:
            file.write(f"{int(message.value)}\n")
        return kill_at(2)(message)

    calls = Isolated(RowFunction(noted, RESULT))
    try:
        done = calls.call(batch(range(4)))
    finally:
        calls.close()
    assert done.failures.keys() == {2}
    assert done.failures[2].type == DIED
    assert "SIGSEGV" in done.failures[2].text
    assert done.results is not None
    assert done.results.field("n").to_pylist() == [0, 1, 3]
    # Once more in a fresh process, to be sure; every other message once.
    assert [int(line) for line in (tmp_path / "calls").read_text().split()] == [0, 1, 2, 2, 3]
    rows = outcomes(Evaluation(RowFunction(kill_at(1), None), POLICY, True), batch(range(3)))
    assert by_kind(rows) == {DEAD: ["1"]}


def test_a_batch_function_that_kills_its_process() -> None:
    def function(rows: pa.RecordBatch) -> pa.Table:
        numbers = [int(value) for value in rows.column("value").to_pylist()]
        if 5 in numbers:
            os._exit(9)
        return pa.table({"n": numbers, "text": [""] * len(numbers)})

    rows = outcomes(Evaluation(ArrowFunction(function, RESULT), POLICY, True), batch(range(10)))
    assert by_kind(rows) == {DEAD: ["5"]}
    assert [row["errorText"] for row in rows if row["kind"] == DEAD] == [
        "the message ended its process with exit code 9"
    ]
    assert sum(row["count"] for row in rows) == 10


def test_what_is_printed_is_not_taken_for_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    rows = outcomes(
        Evaluation(RowFunction(lambda message: print("hello"), None), POLICY, True), batch(range(3))
    )
    assert sum(row["count"] for row in rows) == 3
    assert capfd.readouterr().err.count("hello") == 3


# --- order ------------------------------------------------------------------------------------------------------


def fail_on(*numbers: int) -> Callable[[Any], Any]:
    def function(message: Any) -> None:
        if int(message.value) in numbers:
            raise ValueError(message.value)

    return function


def in_order(function: Callable[[Any], Any], blocked: dict[str, str], *batches: pa.RecordBatch) -> Any:
    return by_kind(outcomes(Evaluation(RowFunction(function, None), POLICY, False, blocked), *batches))


def test_messages_of_a_key_wait_behind_a_failed_one() -> None:
    keys = ["a", "a", "a", "b", "b", None]
    found = in_order(fail_on(1), {}, batch(range(6), orderKey=keys))
    assert found == {RETRY: ["1"], "wait": ["2"]}
    # Also across the batches of a task, and for a key whose retry has not come.
    two = (batch([1], orderKey=["a"]), batch([2, 3], orderKey=["a", "b"]))
    assert in_order(fail_on(1), {"b": "somewhere"}, *two) == {RETRY: ["1"], "wait": ["2", "3"]}


def test_the_retry_frees_its_key_or_blocks_it_again() -> None:
    columns: dict[str, list[Any]] = {"orderKey": ["a"] * 3, "retryOf": ["b:T:0:1", None, None]}
    blocked = {"a": "b:T:0:1"}
    assert in_order(fail_on(), blocked, batch([7, 2, 3], **columns)) == {}
    assert in_order(fail_on(7), blocked, batch([7, 2, 3], **columns)) == {RETRY: ["7"], "wait": ["2", "3"]}
    dead = batch([7, 2, 3], attempt=[3, 1, 1], **columns)
    assert in_order(fail_on(7), blocked, dead) == {DEAD: ["7"]}
    assert in_order(fail_on(2), blocked, batch([7, 2, 3], **columns)) == {RETRY: ["2"], "wait": ["3"]}


# --- policy, reasons --------------------------------------------------------------------------------------------


def test_delays() -> None:
    failure = Failure("E", "")
    assert [POLICY.delay_ms(failure, attempt) for attempt in (1, 2, 9)] == [1000, 10_000, 10_000]
    assert Policy.parse(3, None).delay_ms(failure, 1) is None
    assert Policy.parse(3, [0.5, "2m"]).delays_ms == (500, 120_000)
    assert [duration_ms("d", text) for text in ("500ms", "2h", "1d", 3)] == [500, 7_200_000, 86_400_000, 3000]
    for wrong in ("5", "-1s", "", None, True, -1, float("inf"), float("nan"), "9" * 99 + "s", "4d", 1e6):
        with pytest.raises(ConfigError, match="delays: seconds, or a time like"):
            duration_ms("delays", wrong)
    for count in (0, -1, True, 1.5, 1 << 20):
        with pytest.raises(ConfigError, match="max_attempts"):
            Policy.parse(count, None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="delays: name at least one"):
        Policy.parse(3, "")


def test_reasons_are_bounded_and_without_separators() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert Failure.of(Broken()).text == "no text: str() raised RuntimeError"
    assert Failure.of(ValueError("a\x01b\x02\ud800" + "x" * 9999)).text == "a?b??" + "x" * 995
    assert Failure.of(KeyError("k")).type == "KeyError"
    assert Failure.of(ConfigError("x", key="y")).type == "mqspark.errors.ConfigError"


def test_properties_of_a_failed_message() -> None:
    from pyspark.sql import Row

    def failed(properties: dict[str, str], text: str = "why") -> Failed:
        (values,) = batch([1]).select(list(NAMES)).to_pylist()
        message = Row(**(values | {"properties": properties}))
        return Failed(message, "E", text, None, None, "q", 7, 1234)

    own = {"a": "b", "DELAY": "3", "TIMER_OUT_MS": "9", "REAL_TOPIC": "x", "MQSPARK_RETRY_OF": "old"}
    assert properties_of(failed(own)) == {
        "a": "b",
        "KEYS": "k1",
        "RETRY_TOPIC": "T",
        "UNIQ_KEY": "id1",
        "ORIGIN_MESSAGE_ID": "id1",
        "MQSPARK_FAILED_TYPE": "E",
        "MQSPARK_FAILED_TEXT": "why",
        "MQSPARK_FAILED_ATTEMPT": "1",
        "MQSPARK_FAILED_QUERY": "q",
        "MQSPARK_FAILED_BATCH": "7",
        "MQSPARK_FAILED_AT_MS": "1234",
    }
    assert properties_of(failed({"ORIGIN_MESSAGE_ID": "first"}))["ORIGIN_MESSAGE_ID"] == "first"
    odd = _encoded(properties_of(failed({"odd": "a\x01b"})))
    assert decode_properties(odd)["odd"] == "a\x01b", "RocketMQ's clients send such values"
    full = {"a": "x" * (MAX_PROPERTIES_BYTES - 700)}
    assert len(_encoded(properties_of(failed(full, "y" * 1000)))) <= MAX_PROPERTIES_BYTES


# --- the journal ------------------------------------------------------------------------------------------------


def test_the_journal(tmp_path: Path) -> None:
    journal = Journal(f"file:{tmp_path}")
    assert (journal.state(0), journal.state_before(0, 5)) == (None, State())
    with pytest.raises(MQError, match="has no outcome of batch 0"):
        journal.state_before(1, 5)
    journal.may_come_twice(0, ["p2", "p1"])
    journal.may_come_twice(0, ["p3", "p1"])
    journal.complete(
        0, State({"done": 1}, {"k": "p"}, [0], {"old": [True, 10], "gone": [False, 4], "p1": [True, 99]})
    )
    before = journal.state_before(1, 5)
    assert (before.blocked, before.waiting) == ({"k": "p"}, [0])
    new = [False, 5 + REMEMBERED_MS]
    assert before.resent == {"old": [True, 10], "p1": [True, 99], "p2": new, "p3": new}
    journal.note_trial(1, Trial([[1, 1]], [3, 2], ["part-1-0"], {"part-0-0": 1}))
    assert journal.trial(1) == Trial([[1, 1]], [3, 2], ["part-1-0"], {"part-0-0": 1})
    assert journal.outcome_urls(1) == [f"file:{tmp_path}/work/1/outcome/part-1-0"]
    for number in range(2, 5):
        journal.complete(number, State())
    journal.tidy(4, [0])
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["0", "4"]


def test_a_trial_goes_on_where_its_driver_died(tmp_path: Path) -> None:
    from pyspark_pymq.work.trial import write_outcome

    journal = Journal(str(tmp_path))
    poison: list[str] = []

    def run() -> None:
        write_outcome(
            journal,
            0,
            Frame(range(20)),  # type: ignore[arg-type]
            lambda part, careful: Frame(part.numbers, {7, 13}),  # type: ignore[attr-defined,arg-type,return-value]
            lambda part, kind, text: poison.append((part.numbers, kind)) or Frame(part.numbers),  # type: ignore[attr-defined,arg-type,func-returns-value,return-value]
        )

    for _ in range(40):  # the driver dies with each job that fails
        try:
            run()
        except SystemExit:
            continue
        break
    else:
        raise AssertionError("it does not end")
    assert len(journal.outcome_urls(0)) > 3
    assert sorted(poison) == [([7], DIED), ([13], DIED)]
    written = [int(line) for url in journal.outcome_urls(0) for line in Path(url, "rows").read_text().split()]
    assert sorted(written) == list(range(20))


class Frame:
    """A DataFrame, as far as a trial asks: numbers, some of which kill their driver."""

    def __init__(self, numbers: Iterable[int], deadly: Iterable[int] = ()) -> None:
        self.numbers = list(numbers)
        self._deadly = set(deadly)
        self.write = self

    def where(self, text: str) -> Frame:
        modulus, remainder = (int(part.rstrip("L)")) for part in text.rpartition(", ")[2].split(" = "))
        return Frame([n for n in self.numbers if n % modulus == remainder], self._deadly)

    def selectExpr(self, text: str) -> Frame:
        assert text == "coalesce(orderKey, place) AS lane"
        return self

    def distinct(self) -> Frame:
        return self

    def limit(self, rows: int) -> Frame:
        return Frame(self.numbers[:rows])

    def count(self) -> int:
        return len(self.numbers)

    def mode(self, mode: str) -> Frame:
        assert mode == "overwrite"
        return self

    def parquet(self, url: str) -> None:
        Path(url).mkdir(parents=True, exist_ok=True)
        if self._deadly & set(self.numbers):
            raise SystemExit if len(self.numbers) > 1 else RuntimeError("Python worker exited unexpectedly")
        Path(url, "rows").write_text(" ".join(map(str, self.numbers)))
        Path(url, "_SUCCESS").touch()


class _Routes:
    """A client whose route is what the test says: a broker's name to its address and number of queues."""

    def __init__(self, **brokers: tuple[str | None, int]) -> None:
        self.brokers = brokers
        self.is_away = False

    def publish_route(self, topic: str, *, default_queues: int) -> Any:
        if self.is_away:
            raise NoRoute(topic, "no name server answers")
        queues = [
            MessageQueue(topic, name, n) for name, (_, count) in self.brokers.items() for n in range(count)
        ]
        return SimpleNamespace(publish_queues=queues, master=lambda name: self.brokers[name][0])

    def bridged(self, look_up: Callable[[], Any]) -> Any:
        return look_up()

    def without_retries(self) -> Any:
        return nullcontext()


def test_a_failed_message_returns_to_its_broker_while_the_route_has_it() -> None:
    client = _Routes(a=("h:1", 2), b=("h:2", 1))
    queues = RetryQueues(cast(Any, client), "G")
    assert {queues.next_of("a").queue_id for _ in range(4)} == {0, 1}
    home = queues.next_of("a")
    assert (home.broker_name, queues.address(home), queues.instead_of(home)) == ("a", "h:1", home)
    client.brokers = {"b": ("h:3", 1)}
    client.is_away = True
    queues.refresh(home.topic)
    assert queues.instead_of(home) == home
    client.is_away = False
    queues.refresh(home.topic)
    moved = queues.instead_of(home)
    assert (moved.broker_name, queues.address(moved)) == ("b", "h:3")
    assert queues.address(home) == "h:1"


def test_no_queue_with_a_master_is_an_error() -> None:
    with pytest.raises(NoRoute):
        RetryQueues(cast(Any, _Routes(a=(None, 4))), "G")
