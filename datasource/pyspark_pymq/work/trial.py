"""Writes the outcome of a batch, also when a message kills the process that handles it.

First all messages at once, in Spark's own workers. After a death the functions are called in child processes of the
workers (``pyspark_pymq.work.isolated``), which finds the message at fault without repeating others. Where that is not
enough (a DataFrame function, or a message that kills the whole executor), the batch is halved by a hash until one
message is left. If its process dies once more, that message becomes a dead letter; in an ordered queue, so do all
messages of its key in the batch.

The attempts are recorded in the journal, because the driver may die as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqspark.arrow.files.locations import join
from mqspark.base.logs import escaping
from mqspark.errors import ConfigError
from pyspark_pymq.work.isolated import DIED
from pyspark_pymq.work.journal import WHOLE, Journal, Trial

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = escaping("pyspark_pymq")

_DEATHS = re.compile(
    r"Python worker exited unexpectedly|Python worker process terminated|ExecutorLostFailure|ExecutorDeadException|"
    r"OutOfMemoryError"
)
_LANE = "coalesce(orderKey, place)"
"""The unit that is never split: a message, or those of one key of an ordered queue, which depend on each other."""
_DEATHS_ALONE = 2
"""A message (or key) alone in its part becomes a dead letter after this many deaths, as a driver may die by chance."""
_MAX_BITS = 48
"""Limit of the bits of the hash. Messages that still share a part then become dead letters together."""

Evaluate = Callable[["DataFrame", bool], "DataFrame"]
"""Messages to outcomes; the flag asks for care, because a process died before."""
Poison = Callable[["DataFrame", str, str], "DataFrame"]
"""Messages to dead letters, with the type and the text of the reason."""


def write_outcome(journal: Journal, batch: int, frame: DataFrame, evaluate: Evaluate, poison: Poison) -> None:
    """The outcome is in the directories that ``journal.outcome_urls`` names then."""
    url = journal.outcome_url(batch)
    trial = journal.trial(batch)
    if trial is None:
        if journal.is_written(batch):
            return  # the driver died behind the last task
        is_new = not journal.was_begun(batch)
        if is_new and _died(lambda: _write(evaluate(frame, False), join(url, WHOLE))) is None:
            if not journal.is_written(batch):
                raise ConfigError.of(
                    "checkpoint",
                    f"Spark has written {url}, and it is not there for Python; give the scheme of the file"
                    " system, too (file:///..., s3a://...)",
                )
            return
        trial = Trial()  # now, or when the driver died in this batch
    if trial.trying is not None:
        _split(trial, frame, trial.trying)
    while trial.open:
        part = trial.trying = trial.open.pop()
        name = _name(part)
        journal.note_trial(batch, trial)
        messages = _messages(frame, part)
        if trial.deaths.get(name, 0) < _DEATHS_ALONE:
            log.warning("batch %d: a process died; %s of it is tried with care", batch, name)
            outcome = evaluate(messages, True)
        else:
            outcome = poison(messages, DIED, "the message kills the process that handles it")
        if _died(lambda outcome=outcome, name=name: _write(outcome, join(url, name))) is None:  # type: ignore[misc]
            trial.done.append(name)
            trial.trying = None
        else:
            _split(trial, frame, part)
        journal.note_trial(batch, trial)


def _split(trial: Trial, frame: DataFrame, part: list[int]) -> None:
    """A process died with this part: its halves are tried, or the last message once more."""
    remainder, bits = part
    name = _name(part)
    trial.deaths[name] = trial.deaths.get(name, 0) + 1
    lanes = _messages(frame, part).selectExpr(f"{_LANE} AS lane").distinct()
    if bits < _MAX_BITS and lanes.limit(2).count() > 1:
        trial.open += [[remainder + (1 << bits), bits + 1], [remainder, bits + 1]]
    else:
        trial.open.append(part)
    trial.trying = None


def _name(part: list[int]) -> str:
    return f"part-{part[1]}-{part[0]}"


def _messages(frame: DataFrame, part: list[int]) -> DataFrame:
    remainder, bits = part
    return frame.where(f"pmod(xxhash64({_LANE}), {1 << bits}L) = {remainder}L") if bits else frame


def _write(outcome: DataFrame, url: str) -> None:
    outcome.write.mode("overwrite").parquet(url)


def _died(run: Callable[[], None]) -> str | None:
    """How a process died in ``run``; None if all went well. Raises any other error."""
    try:
        run()
    except Exception as error:
        found = _DEATHS.search(str(error))
        if found is None:
            raise
        return found[0]
    return None
