"""Search for a seed that breaks a promise, or play one again.

    python -m tests.simulation --minutes 60 --workers 2     random seeds for an hour, by two processes
    python -m tests.simulation --minutes 60 --first 10000   these and the following ones
    python -m tests.simulation --first 0 --runs 500 these seeds
    python -m tests.simulation --seed 59            one again, exactly, with what the servers log
    python -m tests.simulation --seed 59 --keep 2,7 --users push    the same with only these faults and programs
    python -m tests.simulation --bug "needs no lease" --runs 100

Prints every failure, the fewest faults and programs that show it, and the command that plays those, and goes on. The
exit code is 1 if there was a failure.
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import sys
import time
from collections.abc import Iterator

from tests.simulation.scheduler import here
from tests.simulation.search import attempts, planted
from tests.simulation.simulation import Bug, Result, Simulation, simulate


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            process = here()
        except RuntimeError:
            return
        print(f"{process.world.now_s:9.4f} s  {process.name}: {record.getMessage()}")


def _seeds(first: int | None, runs: int | None, seconds: float | None) -> Iterator[int]:
    seed = random.SystemRandom().randrange(1 << 32) if first is None else first
    end_s = time.monotonic() + (seconds if seconds is not None else 60.0 if runs is None else 1e9)
    done = 0
    while time.monotonic() < end_s and (runs is None or done < runs):
        yield seed + done
        done += 1


def _parts(text: str) -> list[str]:
    return [] if text == "none" else text.split(",")


def _play(options: argparse.Namespace, bug: Bug) -> Result:
    faults = Simulation(options.seed).faults
    if options.keep is not None:
        faults = [faults[int(number)] for number in sorted(_parts(options.keep), key=int)]
    users = None if options.users is None else _parts(options.users)
    logging.getLogger().addHandler(_Lines())
    logging.getLogger().setLevel(logging.INFO)
    return simulate(options.seed, faults, bug, users=users)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="play this one")
    parser.add_argument("--keep", help="with --seed: only these of its faults, by number, or none")
    parser.add_argument("--users", help="with --seed: only these of its programs, or none")
    parser.add_argument("--first", type=int, help="the first of many")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--workers", type=int, default=1, help="processes; more than one are for many seeds")
    parser.add_argument("--bug", help="part of the name of a bug to plant")
    options = parser.parse_args()
    if options.minutes is not None:
        options.seconds = 60 * options.minutes
    if options.seed is not None:
        result = _play(options, planted(options.bug))
        print(result)
        return int(result.broken is not None)
    planted(options.bug)  # or the search ends before it begins
    seeds = _seeds(options.first, options.runs, options.seconds)
    runs = failures = acked = 0
    for count, failure in attempts(seeds, options.bug, options.workers):
        runs += 1
        acked += count
        if failure is not None:
            failures += 1
            print(failure, flush=True)
    spent_s = sum(
        sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(
        f"{runs} runs in {spent_s:.0f} s of processor time, {acked} messages acknowledged, {failures} runs broke a"
        " promise"
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
