"""Reports: figures with their rounds, collected from the processes of a run, and the comparison of two reports.

A benchmark calls ``figure`` for each figure; ``python -m tests.benchmarks`` collects them through a file that the
environment names (RECORD), adds what disturbed the machine, and writes JSON and a page (``tests.benchmarks.page``).
A benchmark that runs alone records nothing and only prints.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.benchmarks.machine import ALTHOUGH_LOADED, WATCH, Disturbance

RECORD = "MQSPARK_BENCH_RECORD"
"""Environment: the file to which ``figure`` and ``peer`` append, one JSON object a line."""

SHORT_S = 1.0
"""Rounds shorter than this are mostly fixed costs: planning, starts of processes, the first batch."""
TOLERANCE = 0.05
"""Medians that differ by less are equal."""
OURS = "mqspark"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured quantity of one side. Figures of the same name are compared side by side."""

    name: str
    side: str
    unit: str
    rounds: tuple[float, ...]
    less_is_better: bool = False
    round_s: float = 0.0
    """Median duration of a round; 0 when it does not matter."""

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ValueError(f"{self.name}, {self.side}: no figure without its rounds")

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.rounds), max(self.rounds)

    @property
    def is_short(self) -> bool:
        return 0 < self.round_s < SHORT_S


class Benchmark(msgspec.Struct, kw_only=True):
    """One benchmark of a run. ``loaded``: why its figures are no results, or None."""

    name: str
    arguments: list[str]
    seconds: float
    exit_code: int
    load_before: float
    others: float
    steal: float
    loaded: str | None
    figures: list[Figure]
    peers: dict[str, dict[str, str]]


class Report(msgspec.Struct, kw_only=True):
    begun: str
    machine: dict[str, str]
    benchmarks: list[Benchmark]
    format: int = 1

    @classmethod
    def read(cls, path: Path) -> Report:
        """Raises SystemExit with a reason when the file is no report."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise SystemExit(f"{path} is no report: {error}") from None

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    def figures(self) -> Iterator[tuple[str, Figure]]:
        for benchmark in self.benchmarks:
            for each in benchmark.figures:
                yield benchmark.name, each


# --- for benchmarks -------------------------------------------------------------------------------------------


def figure(
    name: str,
    unit: str,
    rounds: Sequence[float],
    *,
    side: str = OURS,
    less_is_better: bool = False,
    round_s: float = 0.0,
) -> Figure:
    """Record a figure. ``round_s``: how long a round took, where fixed costs matter."""
    made = Figure(
        name=name, unit=unit, rounds=tuple(map(float, rounds)), side=side, less_is_better=less_is_better,
        round_s=round_s,
    )  # fmt: skip
    _append("figure", msgspec.to_builtins(made))
    return made


def peer(name: str, **settings: object) -> None:
    """Record what a side was: its version and the settings that differ from its defaults."""
    _append("peer", {"name": name, "settings": {key: str(value) for key, value in settings.items()}})


def ratio(value: float) -> str:
    """The ratio as text, or why it is no result on this machine now."""
    reason = refusal(None if WATCH is None else WATCH.disturbance())
    return f"{value:.2f}" if reason is None else f"(no ratio: {reason})"


def ratio_line(what: str, ours: Figure, theirs: Figure) -> str:
    """What one side is beside another: more than 1 is better for the first."""
    value = theirs.median / ours.median if ours.less_is_better else ours.median / theirs.median
    short = ", short rounds: fixed costs decide" if ours.is_short or theirs.is_short else ""
    return f"{what}: {ratio(value)} x {theirs.side}{short}"


def refusal(disturbance: Disturbance | None) -> str | None:
    """Why ratios are not printed, or None."""
    if disturbance is None or os.environ.get(ALTHOUGH_LOADED):
        return None
    return disturbance.reason


def _append(kind: str, content: dict[str, Any]) -> None:
    if path := os.environ.get(RECORD):
        with open(path, "a") as file:
            file.write(json.dumps({"kind": kind, **content}) + "\n")


def recorded(path: Path) -> tuple[list[Figure], dict[str, dict[str, str]]]:
    """What one benchmark has appended: figures and peers."""
    figures: list[Figure] = []
    peers: dict[str, dict[str, str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        content = json.loads(line)
        if content.pop("kind") == "peer":
            peers[content["name"]] = content["settings"]
        else:
            figures.append(msgspec.convert(content, Figure))
    return figures, peers


# --- two reports ----------------------------------------------------------------------------------------------


class Change(msgspec.Struct, frozen=True):
    """A figure in two reports. ``factor`` above 1 is better in the second."""

    benchmark: str
    before: Figure
    after: Figure

    @property
    def factor(self) -> float:
        a, b = self.before.median, self.after.median
        return (a / b if self.before.less_is_better else b / a) if a and b else 1.0

    @property
    def verdict(self) -> str:
        """ "same" while the rounds of both overlap or the medians are close."""
        (low_a, high_a), (low_b, high_b) = self.before.spread, self.after.spread
        if (low_a <= high_b and low_b <= high_a) or abs(self.factor - 1) <= TOLERANCE:
            return "same"
        return "better" if self.factor > 1 else "worse"


def changes(before: Report, after: Report) -> tuple[list[Change], list[str]]:
    """The figures that both reports have, and what only one of them has."""
    first = {(name, each.name, each.side): each for name, each in before.figures()}
    second = {(name, each.name, each.side): each for name, each in after.figures()}
    both = [Change(key[0], first[key], second[key]) for key in first if key in second]
    missing = [f"only in the first: {', '.join(key)}" for key in first if key not in second]
    missing += [f"only in the second: {', '.join(key)}" for key in second if key not in first]
    return both, missing


def check(first: Path, second: Path, *, although_loaded: bool = False) -> int:
    """Print what changed from one report to the other: 0 nothing is worse, 1 something is, 2 not comparable."""
    before, after = Report.read(first), Report.read(second)
    loaded = [
        f"{path}, {each.name}: {each.loaded}"
        for path, report in ((first, before), (second, after))
        for each in report.benchmarks
        if each.loaded
    ]
    if loaded and not although_loaded:
        print("not compared, because the machine was loaded (--although-loaded compares all the same):")
        print("\n".join(f"  {each}" for each in loaded))
        return 2
    for name in ("processor", "cores", "memory", "python"):
        if before.machine.get(name) != after.machine.get(name):
            print(f"{name}: {before.machine.get(name)} before, {after.machine.get(name)} after")
    both, missing = changes(before, after)
    if not both:
        print("the reports have no figure in common")
        return 2
    width = max(len(f"{each.benchmark}: {each.before.name}, {each.before.side}") for each in both)
    for each in both:
        label = f"{each.benchmark}: {each.before.name}, {each.before.side}"
        print(
            f"{label:<{width}} {spelled(each.before)} -> {spelled(each.after)}  {each.factor:.2f}  {each.verdict}"
        )
    print("\n".join(missing))
    return 1 if any(each.verdict == "worse" for each in both) else 0


def spelled(figure: Figure) -> str:
    """Median, range and unit."""
    low, high = figure.spread
    return f"{number(figure.median)} [{number(low)} to {number(high)}] {figure.unit}"


def number(value: float) -> str:
    if abs(value) >= 1_000_000:
        return f"{value / 1e6:.3g} M"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
