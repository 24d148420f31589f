"""Who may become the master of a set: decided by positions and reported damage, never by membership alone (KIP-966;
DefaultElectPolicy).

Heirs are the members of the SyncStateSet, and who had everything when the set became too small to acknowledge anything.
An heir that has run ever since it was counted in has everything that was acknowledged: it may be elected at once. One
that was started again has what is left of its log, which may be cut, older or another one. Such heirs are elected only
when all heirs were heard, or more than half of them are sound: as long as only a minority is damaged, the one of them
with the longest log has everything. Among those that have as much, one with damage that is still to be healed comes
last.

Must not know time and connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from mqspark.controller.replicasets import ReplicaSet


class Standing(Protocol):
    """What a replica says of itself in its heartbeats."""

    @property
    def epoch(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    @property
    def damaged_bytes(self) -> int: ...

    @property
    def rank(self) -> tuple[int, ...]:
        """Sort key: the replica with the smallest rank is the best master."""


class Choice(NamedTuple):
    master: int | None
    why: str = ""
    """Why there is no master, for people."""


def choose(
    found: ReplicaSet, alive: Mapping[int, Standing], preferred: int | None, *, unclean: bool
) -> Choice:
    """The best of those that are ``alive``. ``preferred``: only this one, by an operator's word, which does not wait
    for others. ``unclean``: by an operator's word, also somebody who may lack messages, if nobody else is left."""
    if preferred is not None:
        return _preferred(found, alive, preferred, unclean=unclean)
    heirs = found.heirs
    unfit = {each: _unfit(found, each, alive[each]) for each in sorted(heirs & alive.keys())}
    sound = [each for each, why in unfit.items() if not why]
    steady = [each for each in sound if not found.has_restarted(each)]
    if steady:
        whole = [each for each in steady if not alive[each].damaged_bytes]
        return Choice(_best(alive, whole or steady))
    if sound and (len(unfit) == len(heirs) or 2 * len(sound) > len(heirs)):
        return Choice(_best(alive, sound))
    if unclean and alive:
        intact = [each for each in alive if not found.replicas[each].damage]
        return Choice(_best(alive, sound or intact or alive))
    missing = sorted(heirs - unfit.keys())
    parts = [f"{each} {why}" for each, why in sorted(unfit.items()) if why]
    if sound:
        parts.append(f"sound, but too few: {listed(sound)}")
    if missing:
        parts.append(f"not heard: {listed(missing)}")
    return Choice(None, "; ".join(parts) or "nobody has all messages")


def _preferred(found: ReplicaSet, alive: Mapping[int, Standing], preferred: int, *, unclean: bool) -> Choice:
    standing = alive.get(preferred)
    if standing is None:
        return Choice(None, f"{preferred} is not alive")
    why = (
        _unfit(found, preferred, standing)
        if preferred in found.heirs
        else f"is not one of {sorted(found.heirs)}, who have all messages"
    )
    if not why or unclean:
        return Choice(preferred)
    lost = max(0, found.confirmed - standing.max_offset)
    return Choice(
        None,
        f"{preferred} {why}. As the master it would lose {lost} bytes that were acknowledged, and what is damaged;"
        " enableElectUncleanMaster=true lets it",
    )


def _unfit(found: ReplicaSet, broker_id: int, standing: Standing) -> str:
    """Why an heir must not be the master, or ''. One that has run on may be further than its last heartbeat says."""
    if found.replicas[broker_id].damage:
        return f"has reported damage: {found.replicas[broker_id].damage}"
    if not found.has_restarted(broker_id):
        return ""
    if standing.max_offset < found.confirmed or standing.epoch < found.confirmed_epoch:
        return (
            f"ends at {standing.max_offset} in epoch {standing.epoch}, before {found.confirmed} in epoch"
            f" {found.confirmed_epoch}, which is confirmed"
        )
    return ""


def _best(alive: Mapping[int, Standing], pool: Iterable[int]) -> int:
    return min(pool, key=lambda each: (alive[each].rank, each))


def listed(broker_ids: Iterable[int]) -> str:
    return ", ".join(str(each) for each in broker_ids)
