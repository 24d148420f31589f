"""The common part of all jobs: tasks on Spark with a progress line, the JSON summary, metrics for a text-file
collector.

A job is a pure plan and an execution of it. It can be killed at any point and run again: complete parts are found
and kept, the rest is repeated. Standard output gets one line, the summary; progress goes to standard error.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from mqspark.base.wholefile import replace_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Summary = dict[str, Any]
"""The result of a job, as JSON: ``job`` and figures with their units in the names."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_S = 0.5
_MAX_CAUSES = 20
_groups = itertools.count()


class ProgressLine:
    """A progress line, written when a step begins, ends, or has advanced."""

    def __init__(self, job: str, stream: TextIO | None = None) -> None:
        self._job = job
        self._stream = stream if stream is not None else sys.stderr
        self._last = ""
        self._started = time.monotonic()

    def show(self, step: str, done: int, total: int, unit: str) -> None:
        line = f"{self._job}: {step} {done}/{total} {unit}"
        if line != self._last:
            self._last = line
            self._stream.write(f"{line} ({time.monotonic() - self._started:.1f} s)\n")
            self._stream.flush()


def run_tasks(
    spark: SparkSession,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    progress: ProgressLine,
    step: str,
    unit: str,
) -> list[Result]:
    """Call ``function`` for every item, one Spark task each; results are in order. ``function`` must be
    importable by workers."""
    if not items:
        return []
    context = spark.sparkContext
    group = f"mqspark-{os.getpid()}-{next(_groups)}"
    context.setJobGroup(group, f"{step} {unit}")
    progress.show(step, 0, len(items), unit)
    with _watching(context, group, lambda done: progress.show(step, done, len(items), unit)):
        results: list[Result] = context.parallelize(list(items), len(items)).map(function).collect()
    progress.show(step, len(items), len(items), unit)
    return results


@contextmanager
def _watching(context: Any, group: str, show: Callable[[int], None]) -> Iterator[None]:
    over = threading.Event()
    tracker = context.statusTracker()

    def watch() -> None:
        while not over.wait(_POLL_S):
            stages = [
                info
                for job_id in tracker.getJobIdsForGroup(group)
                if (job := tracker.getJobInfo(job_id)) is not None
                for stage_id in job.stageIds
                if (info := tracker.getStageInfo(stage_id)) is not None
            ]
            if stages:
                show(sum(info.numCompletedTasks for info in stages))

    watcher = threading.Thread(target=watch, name="mqspark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def write_metrics(path: Path, summary: Summary) -> None:
    """The summary's numbers as Prometheus text, for a text-file collector; replaced atomically."""
    job = json.dumps(summary["job"])
    lines = [
        f"mqspark_job_{name}{{job={job}}} {value}"
        for name, value in sorted(summary.items())
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    lines.append(f"mqspark_job_finished_timestamp_seconds{{job={job}}} {time.time():.0f}")
    replace_metrics(path, lines)


def replace_metrics(path: Path, lines: Sequence[str]) -> None:
    """Raises OSError."""
    replace_file(path, "".join(f"{line}\n" for line in lines).encode())


def relevant_text(error: BaseException) -> str:
    """The relevant part of Spark's error: the project's own error from a worker's trace, otherwise the first line
    of the innermost cause."""
    texts: list[str] = []
    cause: Any = error
    while cause is not None and len(texts) < _MAX_CAUSES:
        texts.append(str(cause))
        cause = getattr(cause, "_cause", None)
    if any("PYTHON_VERSION_MISMATCH" in text for text in texts):
        from pyspark_pymq.doctor import python_mismatch

        return python_mismatch() or (
            "Spark's workers and the driver run different Python versions: set PYSPARK_PYTHON before Spark starts"
        )
    for text in reversed(texts):
        ours = re.findall(r"^(?:mqspark|pyspark_pymq)[\w.]*: (.+)$", text, re.MULTILINE)
        if ours:
            return str(ours[-1])
    lines = [line for text in reversed(texts) for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
