"""Bugs that are planted to show that a run finds them: each is a mistake in one line, with the promise that it breaks.

Some are RocketMQ's (apache/rocketmq issues 5663 and 7689), some were found here by the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import mqspark.broker.replication.epochlink as epochlink
import mqspark.store.upkeep.cutback as cutback
from mqspark.broker.replication.epochlink import ControlledReplicas, EpochFollower
from mqspark.broker.replication.follower import Follower
from mqspark.broker.replication.metadata import Metadata
from mqspark.broker.replication.term import Term
from mqspark.broker.state.consumer_offsets import ConsumerOffsets
from mqspark.config import INT64_MAX
from mqspark.controller.liveness import Liveness
from mqspark.controller.replicasets import ReplicaSet, ReplicaTable
from mqspark.controller.statefile import StateFile
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.queue.consumequeue import FILLER_SIZE
from tests.simulation.disk import SimulatedFiles
from tests.simulation.simulation import Bug

__all__ = ["BUGS"]

BUGS: dict[str, Bug] = {}


def plant(title: str, owner: Any, name: str, new: Callable[[Any], Any]) -> None:
    """``new`` gets the right function, or property, and returns the wrong one."""

    @contextmanager
    def bug() -> Iterator[None]:
        with patch.object(owner, name, new(vars(owner)[name])):
            yield

    BUGS[title] = bug


# --- acknowledgements ---

plant(
    "a master acknowledges what it alone has",
    ControlledReplicas,
    "confirmed",
    lambda right: property(
        lambda self: self._store.acked_offset if self._epoch_follower is None else right.fget(self)
    ),
)
plant(
    "a master waits for one slave, whichever it is",
    ControlledReplicas,
    "confirmed",
    lambda right: property(lambda self: _by_the_fastest(self, right)),
)
plant(
    "the SyncStateSet grows before the master counts it (5663)",
    Term,
    "ask",
    lambda right: lambda self, members: None,
)
plant(
    "a smaller SyncStateSet counts before it is confirmed",
    Term,
    "ask",
    lambda right: lambda self, members: setattr(self, "sync_set", members),
)
plant(
    "a slave reports what it has received and not synced",
    Follower,
    "position",
    lambda right: property(
        lambda self: (
            right.fget(self)
            if self._compared < self._compare_end
            else min(self._store.max_physical_offset, self._next or 0)
        )
    ),
)
plant(
    "what is written counts as synced",
    CommitPipeline,
    "stored_end",
    lambda right: property(lambda self: self._log.written),
)
plant(
    "a sync of a file does nothing now and then",
    SimulatedFiles,
    "sync",
    lambda right: lambda self, fd: None if self.open_files[fd].length % 7 == 2 else right(self, fd),
)


def _by_the_fastest(replicas: Any, right: Any) -> int:
    if replicas._epoch_follower is not None or not replicas._term.holds:
        found: int = right.fget(replicas)
        return found
    acked = [each.acked for each in replicas._by_id().values()]
    replicas._confirmed = max(replicas._confirmed, min(replicas._store.acked_offset, max(acked, default=-1)))
    confirmed: int = replicas._confirmed
    return confirmed


# --- fencing ---


class _WallClock:
    def __init__(self, clock: Any) -> None:
        self.now_ms = self.monotonic_ms = clock.now_ms


plant(
    "a lease follows the clock on the wall",
    Term,
    "__init__",
    lambda right: (
        lambda self, clock, broker_id, lease_ms: right(self, _WallClock(clock), broker_id, lease_ms)
    ),
)


# --- the log of a replaced master ---


def _keeps_all(own: Any, own_end: int, other: Any, other_end: int) -> Any:
    return (own[-1], own_end) if own else None


@contextmanager
def _nothing_is_compared() -> Iterator[None]:
    with patch.object(epochlink, "last_common", _keeps_all):
        with patch.object(Follower, "_compare", _believes):
            yield


def _believes(follower: Any, data: memoryview) -> memoryview:
    size = min(len(data), follower._compare_end - follower._compared)
    follower._compared += size
    return data[size:]


BUGS["a log is not taken back"] = _nothing_is_compared
plant(
    "the ends of logs are not compared",
    Follower,
    "_compare",
    lambda right: _believes,
)
plant(
    "what a master confirms counts before the ends of logs are compared",
    EpochFollower,
    "confirmed",
    lambda right: property(lambda self: _trusts(self)),
)


def _trusts(follower: Any) -> int:
    follower._confirmed = max(follower._confirmed, follower._said)
    confirmed: int = follower._confirmed
    return confirmed


plant(
    "nothing before a hole in a log is found",
    cutback,
    "_entry_before",
    lambda right: _only_the_next,
)


def _only_the_next(queue: Any, offset: int) -> Any:
    entry = queue.entry(offset - 1) if offset > queue.min_offset else None
    return None if entry is None or entry[1] == FILLER_SIZE else entry


plant(
    "a log is taken back too far",
    epochlink,
    "last_common",
    lambda right: lambda *logs: _too_far(right(*logs)),
)


def _too_far(found: Any) -> Any:
    return found if found is None else (found[0], found[0].start)


plant(
    "a log that is being taken back is read",
    ControlledReplicas,
    "is_sure",
    lambda right: property(lambda self: True),
)
plant(
    "consumers see what is not confirmed (7689)",
    ControlledReplicas,
    "gates_readers",
    lambda right: property(lambda self: False),
)

plant(
    "a cut of the log leaves its queue entries",
    cutback.CutBackJob,
    "_cut",
    lambda right: lambda self, queue: 0,
)
plant(
    "a slave never copies the offsets of groups",
    ConsumerOffsets,
    "follow",
    lambda right: lambda self, table: None,
)
plant(
    "a slave never copies topics",
    Metadata,
    "_copy_topics",
    lambda right: lambda self, version, table: None,
)

# --- controllers ---

plant(
    "a controller answers before its state is synced",
    StateFile,
    "save",
    lambda right: lambda self, content: _save_unsynced(self, content, right),
)


def _save_unsynced(file: Any, content: bytes, right: Callable[..., None]) -> None:
    with patch.object(type(file._files), "sync", lambda self, fd: None):
        with patch.object(type(file._files), "sync_directory", lambda self, path: None):
            right(file, content)


plant(
    "anybody may be elected",
    Liveness,
    "choose",
    lambda right: lambda self, found, preferred, *, unclean: right(self, found, preferred, unclean=True),
)


def _keeps_the_set(table: Any, found: ReplicaSet, master: int | None) -> None:
    found.master = master
    found.master_epoch += 1
    found.in_sync_epoch += 1
    table.generation += 1


plant("a new master keeps the old SyncStateSet", ReplicaTable, "set_master", lambda right: _keeps_the_set)


plant(
    "a slave shows everything that it has",
    EpochFollower,
    "confirmed",
    lambda right: property(lambda self: INT64_MAX),
)
