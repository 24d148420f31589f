"""The ``pymq`` sources in a query's progress: their topics, the number of messages in the batch, and the lag.

Spark 4.2 lets a Python source report its offsets in ``StreamingQueryProgress``, but no metrics or description. This
module derives them from the offsets. Must not know a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqspark.errors import MQError
from mqspark.message import MessageQueue
from pyspark_pymq.reading.stream_offsets import Positions


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One ``pymq`` source of a query. As text it names its topics."""

    topics: tuple[str, ...]
    messages: int
    """Messages of the batch, by their offsets; a filter may have passed fewer."""
    rows: int
    lag_messages: int | None
    """Messages that the brokers had when the batch was planned, and that the query has not read; None: unknown."""
    catch_up_s: float | None
    """Seconds to read them at the rate of the batch; None without a rate."""
    ends: Mapping[MessageQueue, int]
    """The position of the query."""

    def __str__(self) -> str:
        names = ", ".join(self.topics[:5]) + (
            f" and {len(self.topics) - 5} more" if len(self.topics) > 5 else ""
        )
        lag = "" if self.lag_messages is None else f", {self.lag_messages:,} behind"
        return f"pymq[{names}]: {self.messages:,} messages{lag}"


def source_progress(progress: Any) -> list[SourceProgress]:
    """The ``pymq`` sources of ``query.lastProgress`` (a ``StreamingQueryProgress`` or its JSON), in the order of the
    query. Empty for None.

    >>> for source in pyspark_pymq.source_progress(query.lastProgress):
    ...     print(source)  # pymq[Orders]: 1,000 messages, 12 behind
    """
    if progress is None:
        return []
    document: Any = progress
    if not isinstance(progress, Mapping | str):
        document = progress.json
    if isinstance(document, str):
        document = json.loads(document)
    found = (_of_source(source) for source in document.get("sources", ()))
    return [each for each in found if each is not None]


def _of_source(source: Mapping[str, Any]) -> SourceProgress | None:
    start, end, latest = (
        _positions(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset")
    )
    if end is None:
        return None
    begin = {} if start is None else start.offsets
    messages = sum(
        until - begin.get(queue, end.begun.get(queue, until)) for queue, until in end.offsets.items()
    )
    lag = None
    if latest is not None:
        lag = sum(max(0, high - end.offsets.get(queue, 0)) for queue, high in latest.offsets.items())
    rate = source.get("processedRowsPerSecond")
    catch_up_s = lag / rate if isinstance(rate, int | float) and rate > 0 and lag is not None else None
    topics = tuple(sorted({queue.topic for queue in end.offsets}))
    rows = int(source.get("numInputRows") or 0)
    return SourceProgress(topics, messages, rows, lag, catch_up_s, end.offsets)


def _positions(offset: Any) -> Positions | None:
    """None for anything but an offset of this source."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, Mapping) or "q" not in offset:
        return None
    try:
        return Positions.from_json(offset)
    except MQError:
        return None
