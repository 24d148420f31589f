"""Search for a seed that breaks a promise, or play one again.

    python -m tests.simulation --seed 59            once, with what the servers log
    python -m tests.simulation --seconds 600        random seeds for ten minutes
    python -m tests.simulation --first 0 --runs 500 these seeds
    python -m tests.simulation --bug "needs no lease" --runs 100

Prints every failure with the fewest faults that show it. The exit code is 1 if there was one.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext

from tests.simulation.bugs import BUGS
from tests.simulation.scheduler import here
from tests.simulation.simulation import Bug, Result, shrink, simulate


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            process = here()
        except RuntimeError:
            return
        print(f"{process.world.now_s:9.4f} s  {process.name}: {record.getMessage()}")


def _bug(text: str) -> Bug:
    names = [name for name in BUGS if text in name]
    if len(names) != 1:
        raise SystemExit("one of:\n" + "\n".join(BUGS))
    return BUGS[names[0]]


def _seeds(first: int | None, runs: int | None, seconds: float | None) -> Iterator[int]:
    seed = random.SystemRandom().randrange(1 << 32) if first is None else first
    end_s = time.monotonic() + (seconds if seconds is not None else 60.0 if runs is None else 1e9)
    done = 0
    while time.monotonic() < end_s and (runs is None or done < runs):
        yield seed + done
        done += 1


def _report(result: Result, bug: Bug) -> None:
    print(result)
    print("with fewer faults:")
    print(shrink(result, bug), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="play this one")
    parser.add_argument("--first", type=int, help="the first of many")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--bug", help="part of the name of a bug to plant")
    options = parser.parse_args()
    bug: Bug = nullcontext if options.bug is None else _bug(options.bug)
    if options.seed is not None:
        logging.getLogger().addHandler(_Lines())
        logging.getLogger().setLevel(logging.INFO)
        result = simulate(options.seed, bug=bug)
        print(result)
        return int(result.broken is not None)
    logging.disable(logging.CRITICAL)
    runs = failures = acked = 0
    for seed in _seeds(options.first, options.runs, options.seconds):
        result = simulate(seed, bug=bug)
        runs += 1
        acked += result.acked
        if result.broken is not None:
            failures += 1
            _report(result, bug)
    print(f"{runs} runs, {acked} messages acknowledged, {failures} runs broke a promise")
    return int(failures > 0)


sys.exit(main())
