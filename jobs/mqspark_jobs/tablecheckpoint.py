"""What the checkpoint of a query over one topic says, read without Spark: the numbered files of ``offsets``, written
before a batch, and of ``commits``, written after it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mqspark.arrow.files.locations import join, names, read_bytes
from mqspark.errors import MQError
from pyspark_pymq.cluster.stream_offsets import Positions


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    query_id: str
    planned: int
    """The newest batch that was planned; -1: none was."""
    committed: int
    """The newest batch that is complete; -1: none is."""
    ends: dict[str, int]
    """``broker:queue`` to the offset where the newest complete batch ends."""


def checkpoint_of(url: str) -> QueryCheckpoint | None:
    """None if there is none, or none in which a batch was planned. Raises MQError for one that is damaged."""
    planned = _newest(join(url, "offsets"))
    if planned < 0:
        return None
    committed = _newest(join(url, "commits"))
    try:
        identity = str(json.loads(read_bytes(join(url, "metadata")))["id"])
        ends = _ends(join(url, "offsets", str(committed))) if committed >= 0 else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise MQError(f"{url} is not the checkpoint of a query that reads one topic: {error!r}") from error
    return QueryCheckpoint(identity, planned, committed, ends)


def _newest(url: str) -> int:
    return max((int(name) for name in names(url) if name.isdecimal() and name.isascii()), default=-1)


def _ends(url: str) -> dict[str, int]:
    # A version, the batch's settings, and one line a source.
    _version, _settings, source = read_bytes(url).decode().splitlines()
    positions = Positions.from_json(json.loads(source))
    return {f"{queue.broker_name}:{queue.queue_id}": offset for queue, offset in positions.offsets.items()}
