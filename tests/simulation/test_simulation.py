"""Replicas in controller mode keep their promises in simulated worlds, and broken ones do not."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.simulation.bugs import BUGS, shows
from tests.simulation.disk import SimulatedFiles
from tests.simulation.faults import NODES, Fault
from tests.simulation.host import SHARED
from tests.simulation.shape import SHARES, USERS, draw_shape
from tests.simulation.simulation import shrink, simulate
from tests.support.draws import draws, some
from tests.support.processes import run_python

OF_THE_HOST = {
    time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns, time.localtime,
    time.sleep, os.urandom, os.getpid,
}  # fmt: skip
"""What would make two runs of a seed differ."""
STORIES = sorted(story for _, stories in SHARES for story in stories)
WITH_PROGRAMS = (8, 13, 44)
"""Seeds of runs with clients that go by routes, each of them in one of these."""
DIGESTS = """
import logging, sys
from tests.simulation.simulation import simulate
logging.disable()
for seed in map(int, sys.argv[1:]):
    result = simulate(seed)
    print(seed, result.broken, result.steps, result.digest)
"""

FIRST_SEEDS, AT_ONCE = 8, 4
"""In ``make test``, beside one seed of each story; about a second each."""
SEEDS, MANY_AT_ONCE = 200, 25
"""In ``make test-all``."""
PARTED = 1
"""The seed of runs in which a master is cut off from its slaves, and nothing else happens."""
MANY_SEEDS = 2_000
"""In ``make test-night``, as many as its profile of hypothesis says. ``python -m tests.simulation`` takes a time."""

BROKEN_ONCE = (1103,)
"""Seeds that have shown a fault of the servers, which is mended: progress was kept when the log was taken back."""

OFTEN, TOLD = ([title for title, each in BUGS.items() if each.shown == shown] for shown in ("often", "told"))
HIDDEN = {title: each.hidden for title, each in BUGS.items() if each.hidden}
MOST_SEEDS = 10_000
"""Within which each other bug is shown; most of them take less than a hundred."""


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


def first_of(story: str, *, begin: int = 0) -> int:
    """The first seed from ``begin`` on with this story."""
    return next(seed for seed in itertools.count(begin) if draw_shape(seed).story == story)


def test_a_seed_is_a_run() -> None:
    first, again, other = simulate(1), simulate(1), simulate(2)
    assert (first.digest, first.steps, first.acked) == (again.digest, again.steps, again.acked)
    assert first.digest != other.digest
    assert first.acked > 50


@pytest.mark.slow("two runs of it; test_a_seed_is_a_run is the fast twin")
def test_programs_with_routes_are_a_run_of_their_seed_too() -> None:
    users = ["producer", "delays", "transactions", "push", "pop"]
    first, again = (simulate(3, users=users) for _ in range(2))
    assert (first.broken, first.digest, first.steps) == (None, again.digest, again.steps)


@pytest.mark.slow("two processes of a dozen runs; the two tests above are the twins")
def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Whatever order sets of texts, and of objects, have there."""
    seeds = [*WITH_PROGRAMS, *map(first_of, STORIES)]
    said = [
        run_python(
            DIGESTS,
            *map(str, seeds),
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONHASHSEED": number},
            check=True,
        ).stdout.splitlines()
        for number in ("1", "2")
    ]
    assert len(said[0]) == len(seeds)
    assert said[0] == said[1]


@pytest.mark.slow("a run under a profile; the tests above are the fast twins")
def test_a_run_asks_its_host_neither_for_the_time_nor_for_chance() -> None:
    asked: set[tuple[str, int, str]] = set()

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and (called in OF_THE_HOST or getattr(called, "__self__", None) is SHARED):
            asked.add((frame.f_code.co_filename, frame.f_lineno, called.__name__))

    sys.setprofile(look)
    try:
        result = simulate(3, users=USERS)
    finally:
        sys.setprofile(None)
    assert result.acked > 50
    assert not asked


@pytest.mark.parametrize("first", some(range(0, FIRST_SEEDS, AT_ONCE), 1))
def test_promises_are_kept(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        check(seed)


@pytest.mark.parametrize("story", some(STORIES, 2))
def test_promises_are_kept_in_each_story(story: str) -> None:
    check(first_of(story, begin=FIRST_SEEDS))


@pytest.mark.slow("half a minute for each; the two tests above are the twins")
@pytest.mark.parametrize("first", range(FIRST_SEEDS, SEEDS, MANY_AT_ONCE))
def test_promises_are_kept_in_more_worlds(first: int) -> None:
    for seed in range(first, min(first + MANY_AT_ONCE, SEEDS)):
        check(seed)


@pytest.mark.night("an hour; test_promises_are_kept is the twin")
@pytest.mark.timeout(3_600)
def test_promises_are_kept_in_many_worlds() -> None:
    for seed in range(SEEDS, draws(MANY_SEEDS)):
        check(seed)


@pytest.mark.parametrize("seed", BROKEN_ONCE)
def test_what_broke_once_is_kept(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("way", some([0, 1, 2], 1), ids=["from", "to", "both"])
def test_a_master_that_is_cut_off_from_its_slaves_is_replaced_soon(way: int) -> None:
    """The timeout of a master is 2 s here, and the network heals after 12 s."""
    assert simulate(PARTED, [Fault(6.0, "apart", "master", "controller", 12.0, way)]).gap_s < 3.0


@pytest.mark.slow("three runs; the failovers of test_promises_are_kept_in_each_story are the fast twins")
def test_a_name_server_that_is_silent_does_not_hold_up_a_failover() -> None:
    silence = Fault(5.0, "pause", "namesrv", "controller", 10.0)
    gaps_s = [
        simulate(1, [silence, Fault(5.1, "kill", node, "controller", 8.0)], users=["push"]).gap_s
        for node in NODES[:3]
    ]
    assert max(gaps_s) < 2.5, "one of them was the master"


def test_a_file_is_as_old_as_its_last_write() -> None:
    """Or retention deletes everything at the hour for it."""
    now_ms = 1_000
    files = SimulatedFiles(Path("/simulated"), {"0": b"old"}, lambda: now_ms)
    now_ms = 5_000
    assert files.age("/simulated/0") == (1_000, 3)
    files.write(files.open("/simulated/0"), b"newer", 0)
    assert files.age("/simulated/0") == (5_000, 5)


@pytest.mark.parametrize(
    "title",
    [
        *OFTEN[::3],
        *(
            pytest.param(title, marks=pytest.mark.slow("two seconds for each; every third is the fast twin"))
            for title in OFTEN
            if title not in OFTEN[::3]
        ),
    ],
)
def test_a_planted_bug_is_found(title: str) -> None:
    assert shows(title, tried(title, 30)) is not None


def tried(title: str, count: int) -> Iterator[int]:
    """Seeds: first the one that has shown it."""
    seed = BUGS[title].seed
    return itertools.chain([] if seed is None else [seed], range(count))


@pytest.mark.slow("a second for each; test_a_planted_bug_is_found is the twin")
@pytest.mark.parametrize("title", TOLD)
def test_a_planted_bug_is_found_by_its_story(title: str) -> None:
    assert shows(title, tried(title, 600)) is not None


@pytest.mark.slow("a dozen runs, for people who look into a failure; that it is found has fast tests")
def test_a_failure_is_shown_by_fewer_faults_and_programs() -> None:
    title = "what is written counts as synced"
    found = shows(title, tried(title, 30))
    assert found is not None
    smaller = shrink(found, BUGS[title].bug)
    assert smaller.broken is not None
    assert len(smaller.faults) <= len(found.faults)
    again = simulate(found.seed, smaller.faults, BUGS[title].bug, users=smaller.shape.users)
    assert (again.broken, again.digest) == (smaller.broken, smaller.digest)


@pytest.mark.night("hours; test_a_planted_bug_is_found is the twin")
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(
    "title",
    [
        *sorted(BUGS.keys() - {*OFTEN, *TOLD, *HIDDEN}),
        *(pytest.param(title, marks=pytest.mark.xfail(reason=reason)) for title, reason in HIDDEN.items()),
    ],
)
def test_a_planted_bug_that_needs_luck_is_found(title: str) -> None:
    assert shows(title, tried(title, MOST_SEEDS)) is not None


def test_a_seed_is_known_of_most_planted_bugs() -> None:
    seeds = [each.seed for each in BUGS.values() if each.seed is not None]
    assert len(seeds) >= 20
    assert max(seeds) < MOST_SEEDS
