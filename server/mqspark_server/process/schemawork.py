"""The thread in which a broker parses and compares schemas: texts of peers, which may take a second each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqspark.broker.schemaregistry.schemaregistry import Done
from mqspark_server.process.diskwork import Worker


class SchemaWorker:
    """``finished``: called after each work that has told its result."""

    def __init__(self, finished: Callable[[], None]) -> None:
        self._worker: Worker | None = None
        self._finished = finished
        self._is_closed = False

    def compute(self, work: Callable[[], Any], done: Done) -> None:
        results: list[Any] = []

        def run() -> None:
            if not self._is_closed:
                results.append(work())

        def computed(error: BaseException | None) -> None:
            if self._is_closed:
                return
            if error is not None and not isinstance(error, Exception):
                error = RuntimeError(f"a schema could not be computed: {error!r}")
            done(results[0] if results else None, error)
            self._finished()

        if self._worker is None:
            self._worker = Worker("mqspark-schemas")
        self._worker.submit(run, computed)

    def close(self) -> None:
        """What waits is given up; waits for what runs."""
        self._is_closed = True
        if self._worker is not None:
            self._worker.close()
