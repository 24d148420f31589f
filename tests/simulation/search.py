"""A search for seeds that break a promise, in this process or in several."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext

from tests.simulation.bugs import BUGS
from tests.simulation.simulation import Bug, Result, shrink, simulate

Attempt = tuple[int, str | None]
"""How many messages were acknowledged, and what to say of a failure."""

RUNS_OF_A_PROCESS = 200
"""Then another one takes its place, and its memory is free."""


def planted(text: str | None) -> Bug:
    """The bug with this in its name; None: none."""
    if text is None:
        return nullcontext
    names = [name for name in BUGS if text in name]
    if len(names) != 1:
        raise SystemExit("one of:\n" + "\n".join(BUGS))
    return BUGS[names[0]].bug


def attempts(seeds: Iterator[int], bug: str | None, workers: int) -> Iterator[Attempt]:
    """In the order of the seeds. ``bug``: as for ``planted``."""
    if workers == 1:
        yield from (_attempt(seed, bug) for seed in seeds)
        return
    with ProcessPoolExecutor(workers, max_tasks_per_child=RUNS_OF_A_PROCESS) as pool:
        running: deque[Future[Attempt]] = deque()
        for seed in seeds:
            running.append(pool.submit(_attempt, seed, bug))
            if len(running) > 2 * workers:
                yield running.popleft().result()
        yield from (each.result() for each in running)


def _attempt(seed: int, bug: str | None) -> Attempt:
    logging.disable(logging.CRITICAL)
    result = simulate(seed, bug=planted(bug))
    return result.acked, None if result.broken is None else _report(result, bug)


def _report(result: Result, bug: str | None) -> str:
    found = shrink(result, planted(bug))
    kept = [result.faults.index(fault) for fault in found.faults]
    command = f"python -m tests.simulation --seed {result.seed} --keep {_joined(kept)}"
    command += f" --users {_joined(found.shape.users)}"
    if bug is not None:
        command += f" --bug {bug!r}"
    return f"{result}\nwith less:\n{found}\n  {command}"


def _joined(parts: object) -> str:
    return ",".join(sorted(map(str, parts))) or "none"  # type: ignore[call-overload]
