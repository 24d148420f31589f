"""The files of a work queue's query in its checkpoint directory, beside Spark's own.

    <checkpoint>/work/<batch>/outcome/     the outcome of the batch, as Parquet
    <checkpoint>/work/<batch>/batch.json   the outcome is complete; what the next batch has to know
    <checkpoint>/work/<batch>/resent.json  retries that may have been sent twice
    <checkpoint>/work/<batch>/trial.json   a process died in this batch; what has been tried

A batch whose ``batch.json`` exists is never evaluated again. Must not know Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from mqspark.arrow.files.locations import join, names, read_bytes, remove_tree, write_bytes
from mqspark.errors import MQError

WHOLE = "all"
"""The outcome of a whole batch, written at once."""
REMEMBERED_MS = 72 * 3_600_000
"""How long a retry that may have been sent twice is remembered: a broker keeps messages for 72 hours by default."""


@dataclass
class State:
    """The state that batch N passes to batch N+1."""

    counts: dict[str, int] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)
    """Ordered queues: key to the place of the failed message that its messages wait for."""
    waiting: list[int] = field(default_factory=list)
    """Ordered queues: the batches in whose outcomes messages wait."""
    resent: dict[str, list[Any]] = field(default_factory=dict)
    """Retries that may come twice: the place that they were sent from, to whether one has come, and until when it is
    remembered, in milliseconds."""


@dataclass
class Trial:
    """The search for the messages that kill the process which handles them. A part of a batch is (remainder, bits) of
    the hash of its messages' places."""

    open: list[list[int]] = field(default_factory=lambda: [[0, 0]])
    """Parts without an outcome."""
    trying: list[int] | None = None
    """The part that a job is working on; if this is found later, the driver died with it."""
    done: list[str] = field(default_factory=list)
    """The names of parts with an outcome."""
    deaths: dict[str, int] = field(default_factory=dict)
    """How often a process died, by the names of parts."""


class Journal:
    def __init__(self, checkpoint: str) -> None:
        self._root = join(checkpoint, "work")

    def outcome_url(self, batch: int) -> str:
        return join(self._root, str(batch), "outcome")

    def outcome_urls(self, batch: int) -> list[str]:
        """The directories that hold the outcome: one, or parts of it."""
        url = self.outcome_url(batch)
        trial = self.trial(batch)
        found = trial.done if trial is not None else [name for name in names(url) if name == WHOLE]
        return [join(url, name) for name in found]

    def is_written(self, batch: int) -> bool:
        """Whether the whole outcome was written at once, to its end."""
        return "_SUCCESS" in names(join(self.outcome_url(batch), WHOLE))

    def was_begun(self, batch: int) -> bool:
        """Whether a part of its outcome was written."""
        return bool(names(self.outcome_url(batch)))

    def state(self, batch: int) -> State | None:
        """The state after the batch; None if its outcome is not complete."""
        document = self._load(batch, "batch")
        return None if document is None else State(**document)

    def state_before(self, batch: int, now_ms: int) -> State:
        """Raises MQError if the directory is not that of the query."""
        if batch == 0:
            return State()
        state = self.state(batch - 1)
        if state is None:
            raise MQError(
                f"checkpoint: {self._root} has no outcome of batch {batch - 1}; the directory was changed, or is that"
                " of another query"
            )
        until_ms = now_ms + REMEMBERED_MS
        resent = {place: kept for place, kept in state.resent.items() if kept[1] > now_ms}
        again = {place: [False, until_ms] for place in self._resent(batch - 1)}
        return State(blocked=state.blocked, waiting=state.waiting, resent=again | resent)

    def complete(self, batch: int, state: State) -> None:
        """Record that the outcome of the batch is final."""
        self._save(batch, "batch", asdict(state))

    def may_come_twice(self, batch: int, places: Iterable[str]) -> None:
        """Record retries before any of them is sent again."""
        self._save(batch, "resent", sorted({*self._resent(batch), *places}))

    def _resent(self, batch: int) -> list[str]:
        return self._load(batch, "resent") or []

    def trial(self, batch: int) -> Trial | None:
        document = self._load(batch, "trial")
        return None if document is None else Trial(**document)

    def note_trial(self, batch: int, trial: Trial) -> None:
        self._save(batch, "trial", asdict(trial))

    def tidy(self, batch: int, needed: Iterable[int]) -> None:
        """Remove what no later batch needs."""
        keep = {batch, *needed}
        for name in names(self._root):
            if name.isdigit() and int(name) < batch and int(name) not in keep:
                remove_tree(join(self._root, name))

    def _load(self, batch: int, name: str) -> Any:
        try:
            return json.loads(read_bytes(join(self._root, str(batch), f"{name}.json")))
        except FileNotFoundError:
            return None

    def _save(self, batch: int, name: str, document: Any) -> None:
        write_bytes(
            join(self._root, str(batch), f"{name}.json"), json.dumps(document, sort_keys=True).encode()
        )
