"""Replicas in controller mode keep their promises in simulated worlds, and broken ones do not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.simulation import Bug, simulate
from tests.support.draws import draws

SEEDS = 30
"""In ``make test``; about half a second each."""

FOUND_ONCE = (59, 139, 144, 162)
"""Each broke a promise once: a slave whose log had to be taken back showed what was not confirmed."""

OFTEN = (
    "a master acknowledges what it alone has",
    "a master waits for one slave, whichever it is",
    "a slave reports what it has received and not synced",
    "what is written counts as synced",
    "a sync of a file does nothing now and then",
    "a log is not taken back (epochs and bytes)",
    "a log that is being taken back is read",
    "consumers see what is not confirmed (7689)",
    "a controller answers before its state is synced",
    "a new master keeps the old SyncStateSet",
)
"""Bugs that some of ten seeds show."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def check(seed: int, bug: Bug = nullcontext) -> None:
    result = simulate(seed, bug=bug)
    assert result.broken is None, f"python -m tests.simulation --seed {seed}\n{result}"


def test_a_seed_is_a_run() -> None:
    first, again, other = simulate(1), simulate(1), simulate(2)
    assert (first.digest, first.steps, first.acked) == (again.digest, again.steps, again.acked)
    assert first.digest != other.digest
    assert first.acked > 100


@pytest.mark.parametrize("seed", FOUND_ONCE)
def test_what_was_found_once_stays_mended(seed: int) -> None:
    check(seed)


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
