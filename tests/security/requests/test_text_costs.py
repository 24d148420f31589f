"""What the text of a peer costs: a filter over a property that is almost a number, an error that is almost a secret,
acknowledgements that no check point comes for. A pattern that tries every way to split a text takes the square or the
cube of its length, and holds the loop meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.base.logs import without_secrets
from mqspark.broker.pop import revive
from mqspark.filter.sql import compile_sql
from tests.support.invariants import validate
from tests.support.pace import ProcessorTime
from tests.unit.broker.pop.test_poprevive import put_record
from tests.unit.broker_kit import Bench
from tests.unit.pop_kit import pass_time, pop, put

LONGEST = 32_000
"""About the longest value of a property."""


def took_s(work: Callable[[], object]) -> float:
    """Time of the processor, at best of three."""

    def once() -> float:
        with ProcessorTime() as cost:
            work()
        return cost.seconds

    return min(once() for _ in range(3))


@pytest.mark.parametrize("expression", ["a > 1.5", "a >= 0", "a < b", "a BETWEEN 1.5 AND 2.5", "a = 1.5"])
@pytest.mark.parametrize(
    "value",
    ["1" * LONGEST + "x", "0x" + "1" * LONGEST + "p", "." + "1" * LONGEST + "x", "1" * LONGEST + "e"],
    ids=["digits", "hexadecimal", "fraction", "exponent"],
)
def test_a_property_that_is_almost_a_number_is_looked_at_once(expression: str, value: str) -> None:
    """With every split of its digits it took a quarter of a minute."""
    found = compile_sql(expression)
    assert not found.matches({"a": value, "b": value})
    assert took_s(lambda: found.matches({"a": value, "b": value})) < 0.05


@pytest.mark.parametrize("text", ["secret" * 10_000, "a=secret" * 8_000, "://a" * 20_000, "'" * 60_000])
def test_secrets_are_looked_for_once(text: str) -> None:
    """A hostile server's remark, in the error of a job or of an archive."""
    without_secrets(text)
    assert took_s(lambda: without_secrets(text)) < 0.1


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    put(bench, "a")
    pop(bench, bench.peer())
    yield bench
    validate(bench.broker)


def test_acknowledgements_that_wait_are_not_counted_for_each_new_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are over are found without looking at the others."""
    looked = 0

    class Watched(revive.EarlyAck):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looked
            looked += name == "until_ms"
            return super().__getattribute__(name)

    monkeypatch.setattr(revive, "EarlyAck", Watched)
    pass_time(bench, 1_000)
    now_ms, count = bench.clock.now_ms(), 200
    for number in range(count):
        put_record(
            bench,
            "ack",
            {"ao": 0, "bn": "b-a", "c": "CG", "pt": now_ms - 59_000 - number, "q": 0, "so": 0, "t": "T"},
        )
    pass_time(bench, 1_000, step_ms=200)
    assert 0 < looked <= 4 * count
    pass_time(bench, 10_000)
