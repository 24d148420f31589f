"""Shared by the tests of jobs: a store with all kinds of messages, and a stand-in for Spark in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mqspark.message import SCHEDULE_TOPIC, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE
from mqspark.store import MessageStore
from mqspark_jobs.job import ProgressLine
from tests.support.clocks import ManualClock
from tests.support.store_tools import flush, opened, put


class Killed(Exception):
    """Raised by a test to simulate the kill of a job."""


class InProcessSpark:
    """The parts of a session that ``run_tasks`` needs. Every task runs in this process, one after the other."""

    def __init__(self, *, dies_after: int = -1) -> None:
        """``dies_after``: number of tasks, over all stages, after which it raises Killed; negative: never."""
        self.sparkContext = self
        self.defaultParallelism = 2
        self.tasks = 0
        self._dies_after = dies_after

    def setJobGroup(self, group: str, description: str) -> None:
        assert group
        assert description

    def statusTracker(self) -> Any:
        return SimpleNamespace(getJobIdsForGroup=lambda group: [])

    def parallelize(self, items: list[Any], slices: int) -> Any:
        assert slices == len(items)
        return SimpleNamespace(
            map=lambda function: SimpleNamespace(collect=lambda: self._run(function, items))
        )

    def _run(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        return [self._task(function, item) for item in items]

    def _task(self, function: Callable[[Any], Any], item: Any) -> Any:
        if self.tasks == self._dies_after:
            raise Killed
        self.tasks += 1
        return function(item)


def quiet(job: str) -> ProgressLine:
    return ProgressLine(job, StringIO())


def filled_store(root: Path, count: int = 300, **settings: Any) -> MessageStore:
    """Open, with records of all kinds in many segments, queue files and index files."""
    store = opened(root, ManualClock(), **settings)
    for number in range(count):
        store.clock.advance(7)  # type: ignore[attr-defined]
        properties = f"KEYS\x01k{number % 9} all\x02UNIQ_KEY\x01U{number:05d}\x02TAGS\x01t{number % 3}\x02"
        put(store, f"Topic{number % 3}", number % 2, b"x" * (number % 90), properties.encode())
        if number % 20 == 0:
            put(store, SCHEDULE_TOPIC, 2, b"later", b"DELAY\x013\x02")
            put(store, "Topic0", 0, b"half", b"KEYS\x01h\x02", sys_flag=TRANSACTION_PREPARED_TYPE)
            put(store, "Topic0", 0, b"back", b"KEYS\x01r\x02", sys_flag=TRANSACTION_ROLLBACK_TYPE)
            flush(store)
    flush(store)
    return store


def tree(root: Path) -> dict[str, bytes]:
    """Every file below, by its path."""
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }
