"""Replicas in controller mode keep their promises in simulated worlds, and broken ones do not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.disk import SimulatedFiles
from tests.simulation.simulation import simulate
from tests.support.draws import draws

SEEDS = 25
"""In ``make test``; about a third of a second each."""

OFTEN = (
    "a master acknowledges what it alone has",
    "a master waits for one slave, whichever it is",
    "a slave reports what it has received and not synced",
    "what is written counts as synced",
    "a sync of a file does nothing now and then",
    "a lease follows the clock on the wall",
    "consumers see what is not confirmed (7689)",
    "a slave shows everything that it has",
    "a slave never copies topics",
    "a controller answers before its state is synced",
)
"""Bugs that some of the first ten seeds show."""

SELDOM = (
    "what a master confirms counts before the ends of logs are compared",
    "the ends of logs are not compared",
    "nothing before a hole in a log is found",
)
"""Bugs that one in a thousand seeds may show."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def check(seed: int) -> None:
    result = simulate(seed)
    assert result.broken is None, f"python -m tests.simulation --seed {seed}\n{result}"
    with pytest.raises(RuntimeError):  # a loop that was made here, nobody would close
        asyncio.get_event_loop()


def test_a_seed_is_a_run() -> None:
    first, again, other = simulate(1), simulate(1), simulate(2)
    assert (first.digest, first.steps, first.acked) == (again.digest, again.steps, again.acked)
    assert first.digest != other.digest
    assert first.acked > 50


def test_promises_are_kept() -> None:
    for seed in range(SEEDS):
        check(seed)


@pytest.mark.slow("minutes; test_promises_are_kept is the twin")
@pytest.mark.timeout(3_600)
def test_promises_are_kept_in_many_worlds() -> None:
    for seed in range(SEEDS, draws(2_000)):
        check(seed)


def test_a_file_is_as_old_as_its_last_write() -> None:
    """Or retention deletes everything at the hour for it."""
    now_ms = 1_000
    files = SimulatedFiles(Path("/simulated"), {"0": b"old"}, lambda: now_ms)
    now_ms = 5_000
    assert files.age("/simulated/0") == (1_000, 3)
    files.write(files.open("/simulated/0"), b"newer", 0)
    assert files.age("/simulated/0") == (5_000, 5)


@pytest.mark.parametrize("name", OFTEN)
def test_a_planted_bug_is_found(name: str) -> None:
    assert any(simulate(seed, bug=BUGS[name]).broken for seed in range(30))


@pytest.mark.slow("minutes; test_a_planted_bug_is_found is the twin")
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", sorted(BUGS.keys() - {*OFTEN, *SELDOM}))
def test_a_planted_bug_that_needs_luck_is_found(name: str) -> None:
    assert any(simulate(seed, bug=BUGS[name]).broken for seed in range(500))
