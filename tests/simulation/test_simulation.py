"""Replicas in controller mode keep their promises in simulated worlds, and broken ones do not."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.faults import Fault
from tests.simulation.simulation import simulate
from tests.support.draws import draws

SEEDS = 8
"""In ``make test``; about half a second each."""

FOUND_ONCE = (
    # A slave whose log had to be taken back showed what was not confirmed.
    (59, [Fault(19.373, "reset", "broker-1", "controller", 0.0)]),
    (162, [Fault(25.816, "reset", "controller", "broker-1", 0.0)]),
    # A power cut left a hole in a slave's log: it showed what lies behind, and never found its way back.
    (
        291,
        [
            Fault(14.825, "isolate", "broker-2", "broker-0", 3.515),
            Fault(18.009, "cut", "broker-2", "controller", 4.306, 1),
            Fault(19.110, "pause", "broker-2", "broker-0", 4.22),
            Fault(22.606, "disk", "broker-2", "broker-0", 3.818, errno.ENOSPC),
            Fault(30.941, "power", "broker-2", "broker-0", 0.059),
        ],
    ),
)

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


def check(seed: int, faults: list[Fault] | None = None) -> None:
    result = simulate(seed, faults)
    assert result.broken is None, f"python -m tests.simulation --seed {seed}\n{result}"


def test_a_seed_is_a_run() -> None:
    first, again, other = simulate(1), simulate(1), simulate(2)
    assert (first.digest, first.steps, first.acked) == (again.digest, again.steps, again.acked)
    assert first.digest != other.digest
    assert first.acked > 100


@pytest.mark.parametrize(("seed", "faults"), FOUND_ONCE)
def test_what_was_found_once_stays_mended(seed: int, faults: list[Fault]) -> None:
    check(seed, faults)


def test_promises_are_kept() -> None:
    for seed in range(SEEDS):
        check(seed)


@pytest.mark.slow("a quarter of an hour; test_promises_are_kept is the twin")
@pytest.mark.timeout(3_600)
def test_promises_are_kept_in_many_worlds() -> None:
    for seed in range(SEEDS, draws(2_000)):
        check(seed)


@pytest.mark.parametrize("name", OFTEN)
def test_a_planted_bug_is_found(name: str) -> None:
    assert any(simulate(seed, bug=BUGS[name]).broken for seed in range(30))


@pytest.mark.slow("minutes; test_a_planted_bug_is_found is the twin")
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", sorted(BUGS.keys() - {*OFTEN, *SELDOM}))
def test_a_planted_bug_that_needs_luck_is_found(name: str) -> None:
    assert any(simulate(seed, bug=BUGS[name]).broken for seed in range(300))
