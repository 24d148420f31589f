"""Bugs that are planted to show that a run finds them: each is a mistake in one line, with the promise that it breaks.

Some are RocketMQ's (apache/rocketmq issues 5663 and 7689), some were found here by the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import mqspark.broker.replication.epochlink as epochlink
from mqspark.broker.replication.epochlink import ControlledReplicas, EpochFollower
from mqspark.broker.replication.follower import Follower
from mqspark.broker.replication.term import Term
from mqspark.config import INT64_MAX
from mqspark.controller.liveness import Liveness
from mqspark.controller.replicasets import ReplicaSet, ReplicaTable
from mqspark.controller.statefile import StateFile
from mqspark.store.store import MessageStore
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
    MessageStore,
    "_stored_end",
    lambda right: property(lambda self: self._log.written),
)
plant(
    "a sync of a file does nothing now and then",
    SimulatedFiles,
    "sync",
    lambda right: lambda self, fd: None if self.open_files[fd].length % 7 == 2 else right(self, fd),
)
plant(
    "slaves that have left count with what they had",
    ControlledReplicas,
    "disconnect",
    lambda right: lambda self, replica: None,
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

plant(
    "a master needs no lease",
    Term,
    "holds",
    lambda right: property(lambda self: self.is_master and not self.is_over),
)
plant(
    "a lease counts from the answer, not from the question",
    Term,
    "renewed",
    lambda right: lambda self, sent_ms: right(self, self._clock.monotonic_ms()),
)
plant(
    "a heartbeat brings back a lease that had ended",
    Term,
    "answered",
    lambda right: lambda self, sent_ms: self.renewed(sent_ms),
)


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
plant(
    "a set of an older decision is believed",
    Term,
    "decided",
    lambda right: lambda self, members, set_epoch: _believe(self, members, set_epoch),
)


def _believe(term: Any, members: Any, set_epoch: int) -> None:
    term.set_epoch, term.sync_set, term._asked = set_epoch, frozenset(members), frozenset()


# --- the log of a replaced master ---


def _keeps_all(own: Any, own_end: int, other: Any, other_end: int) -> Any:
    return (own[-1], own_end) if own else None


plant("a log is not taken back (epochs)", epochlink, "last_common", lambda right: _keeps_all)


@contextmanager
def _nothing_is_compared() -> Iterator[None]:
    with patch.object(epochlink, "last_common", _keeps_all):
        with patch.object(Follower, "_compare", _believes):
            yield


def _believes(follower: Any, data: memoryview) -> memoryview:
    size = min(len(data), follower._compare_end - follower._compared)
    follower._compared += size
    return data[size:]


BUGS["a log is not taken back (epochs and bytes)"] = _nothing_is_compared
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
plant(
    "the one with the longest log is elected, in sync or not",
    Liveness,
    "choose",
    lambda right: lambda self, found, preferred, *, unclean: _longest(self, found, preferred, unclean, right),
)


def _longest(liveness: Any, found: ReplicaSet, preferred: Any, unclean: bool, right: Any) -> Any:
    if found.master is not None and liveness.may_be_alive(found.name, found.master):
        return right(liveness, found, preferred, unclean=unclean)
    alive = {
        each: liveness._live[found.name, each]
        for each in found.replicas
        if liveness.is_alive(found.name, each)
    }
    return min(alive, key=lambda each: (-alive[each].max_offset, each), default=None)


def _keeps_the_set(table: Any, found: ReplicaSet, master: int | None) -> None:
    found.master = master
    found.master_epoch += 1
    found.in_sync_epoch += 1
    table.generation += 1


plant("a new master keeps the old SyncStateSet", ReplicaTable, "set_master", lambda right: _keeps_the_set)
plant(
    "a slave joins the SyncStateSet when it connects",
    ControlledReplicas,
    "wanted_set",
    lambda right: lambda self: _whoever_is_there(self, right),
)


def _whoever_is_there(replicas: Any, right: Any) -> frozenset[int] | None:
    wanted: frozenset[int] | None = right(replicas)
    term = replicas._term
    if not term.is_master or term.is_over:
        return wanted
    there = {each.hello.broker_id for each in replicas._all if each.hello is not None}
    everyone = (term.sync_set if wanted is None else wanted) | there
    return everyone if everyone != term.sync_set else None


plant(
    "a slave shows everything that it is sent",
    EpochFollower,
    "_parse",
    lambda right: lambda self, data: _confirms_all(self, data, right),
)


def _confirms_all(follower: Any, data: bytes, right: Any) -> Any:
    for each in right(follower, data):
        follower.confirmed = INT64_MAX
        yield each
