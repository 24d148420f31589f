"""What brokers know of a set that this controller's state does not: the state is older than they are.

A restored backup or a snapshot of etcd has forgotten decisions, on which brokers act. The first broker that says a
newer epoch shows it. From then on nobody is named as the master of that set, so that the lease of whoever leads ends,
and the SyncStateSet is the newest one that a broker knows. A master is elected, in an epoch above all, once everybody
who may know more was heard. All of this is saved with the set: another start of the
controller forgets none of it.

For the first seconds after a start nobody is elected into a set that was loaded while replicas of it are silent: one of
them may know more.

Must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mqspark.base.clock import Clock
from mqspark.controller.replicasets import FIRST_ID, IMPOSSIBLE_EPOCH, NOBODY, ReplicaSet
from mqspark.controller.succession import listed
from mqspark.protocol.servers.byid import decode_ids

HEAR_MS = 3_000
"""How long a controller that has just started waits for the first heartbeats of all replicas: some intervals."""


class Claim(NamedTuple):
    """What a broker knows of its set. It has learned it from a controller, or from its master's log."""

    epoch: int
    set_epoch: int = 0
    members: frozenset[int] = frozenset()
    """The SyncStateSet; empty if the broker does not know it."""


def read_claim(*epochs: int | None, set_epoch: int | None = None, members: str | None = None) -> Claim | None:
    """The newest of these epochs; None if a broker says none that is possible. A text that is no set is none."""
    epoch = max((each for each in epochs if each is not None and each < IMPOSSIBLE_EPOCH), default=-1)
    if epoch < 0:
        return None
    ids = decode_ids(members)
    if set_epoch is None or not 0 <= set_epoch < IMPOSSIBLE_EPOCH or min(ids, default=0) < FIRST_ID:
        return Claim(epoch)
    return Claim(epoch, set_epoch, ids)


def is_newer(claim: Claim, found: ReplicaSet) -> bool:
    """Whether it shows that the state of the controller is older than what this broker was told."""
    return claim.epoch > found.master_epoch or bool(claim.members and claim.set_epoch > found.in_sync_epoch)


class Doubts:
    """``is_alive``: whether a replica was heard lately. ``loaded``: the sets that the state has at the start."""

    def __init__(self, clock: Clock, is_alive: Callable[[str, int], bool], loaded: Iterable[str]) -> None:
        self._clock = clock
        self._is_alive = is_alive
        self._started_ms = clock.monotonic_ms()
        self._loaded = frozenset(loaded)
        self._heard: dict[str, set[int]] = {}
        """Who has told this controller what it knows, of each set in doubt."""

    def heard(self, found: ReplicaSet, broker_id: int) -> None:
        """It has told what it knows, in a heartbeat."""
        if found.to_hear:
            self._heard.setdefault(found.name, set()).add(broker_id)
        else:
            self._heard.pop(found.name, None)

    def waits_for(self, found: ReplicaSet) -> str:
        """Why nobody may be elected yet, or ''."""
        if not found.to_hear:
            if found.name not in self._loaded or self._clock.monotonic_ms() - self._started_ms >= HEAR_MS:
                return ""
            silent = [each for each in sorted(found.replicas) if not self._is_alive(found.name, each)]
            return f"this controller has just started and has not heard {listed(silent)}" if silent else ""
        reason = "the state of this controller is older than what its brokers know"
        if NOBODY in found.to_hear:
            return f"{reason}, and it does not know who else there is: let an operator elect (mqadmin electMaster)"
        known = self._heard.get(found.name, set())
        silent = [
            each
            for each in sorted(found.to_hear)
            if each not in known or not self._is_alive(found.name, each)
        ]
        return f"{reason}, and {listed(silent)} may know more: not heard" if silent else ""
