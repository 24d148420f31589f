"""Bugs that are planted to show that a run finds them: each is a mistake in one line, with the promise that it breaks.

Some are RocketMQ's (apache/rocketmq issues 5663 and 7689), some were found here by the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import mqspark.broker.transaction.openhalves as openhalves
import mqspark.broker.transaction.transactions as transactions
import mqspark.controller.controller as controller
import mqspark.controller.liveness as liveness
import mqspark.store.recovery.trustedlog as trustedlog
import mqspark.store.upkeep.cutback as cutback
import mqspark_server.controlled_app as controlled_app
from mqspark.base.config import INT64_MAX
from mqspark.broker.pop.revive import PopRevival
from mqspark.broker.pop.revivelog import ReviveLog
from mqspark.broker.replication import epochreplicas
from mqspark.broker.replication.epochreplicas import EpochFollower, EpochReplicas
from mqspark.broker.replication.follower import Follower
from mqspark.broker.replication.loghealing import Healing
from mqspark.broker.replication.manager import ReplicasManager
from mqspark.broker.replication.metadata import Metadata
from mqspark.broker.replication.term import Term
from mqspark.broker.tables.consumer_offsets import ConsumerOffsets
from mqspark.broker.timer.delays import DelayService
from mqspark.broker.timer.timerservice import TimerService
from mqspark.client.remoting.instance import ClientInstance
from mqspark.controller.liveness import Liveness
from mqspark.controller.replicasets import ReplicaSet, ReplicaTable
from mqspark.controller.severed import Severance
from mqspark.controller.statefile import StateFile
from mqspark.controller.succession import Choice, choose
from mqspark.message import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from mqspark.namesrv.routes import RouteTable
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.dispatch import Refusal
from mqspark.store.disk.notes.membernote import MemberNote
from mqspark.store.messages.commit import CommitPipeline
from mqspark.store.queue.consumequeue import FILLER_SIZE
from mqspark.store.recovery.mending import LogMender
from mqspark_server.controlled_app import ControlledApp
from tests.simulation.disk import SimulatedFiles
from tests.simulation.shape import draw_shape
from tests.simulation.simulation import Bug, Result, simulate


class Planted(NamedTuple):
    bug: Bug
    seed: int | None
    """The first that showed it when all were last tried. A change of the servers may make another one the first."""
    shown: str
    """``often``: some of the first ten seeds show it; ``told``: some of the first runs with its story; ``luck``."""
    hidden: str
    """Why no run has shown it yet, or shows it no more: what is missing, or what else keeps the promise."""
    needs: str | None
    """The user or the story of a shape without which a run is not likely to show it."""


BUGS: dict[str, Planted] = {}


def shows(title: str, seeds: Iterable[int]) -> Result | None:
    """The first of these runs that the bug breaks."""
    bug = BUGS[title]
    for seed in seeds:
        shape = draw_shape(seed)
        if bug.needs is None or bug.needs in {*shape.users, shape.story}:
            result = simulate(seed, bug=bug.bug)
            if result.broken is not None:
                return result
    return None


def plant(title: str, owner: Any, name: str, new: Callable[[Any], Any], **more: Any) -> None:
    """``new`` gets the right function, or property, and returns the wrong one. ``more``: for ``plant_context``."""

    @contextmanager
    def bug() -> Iterator[None]:
        with patch.object(owner, name, new(vars(owner)[name])):
            yield

    plant_context(title, bug, **more)


def plant_context(
    title: str,
    bug: Bug,
    *,
    seed: int | None = None,
    shown: str = "luck",
    hidden: str = "",
    needs: str | None = None,
) -> None:
    assert (seed is None) is bool(hidden), title
    BUGS[title] = Planted(bug, seed, shown, hidden, needs)


# --- acknowledgements ---

plant("a master acknowledges what it alone has", EpochReplicas, "confirmed",
      lambda right: property(lambda self: _stored(self, right)), seed=0, shown="often")  # fmt: skip
plant("a master waits for one slave, whichever it is", EpochReplicas, "confirmed",
      lambda right: property(lambda self: _by_the_fastest(self, right)), seed=0, shown="often")  # fmt: skip
plant("the SyncStateSet grows before the master counts it (5663)", Term, "ask",
      lambda right: lambda self, members: None, seed=52)  # fmt: skip
plant("a smaller SyncStateSet counts before it is confirmed", Term, "ask",
      lambda right: lambda self, members: setattr(self, "sync_set", members), seed=4)  # fmt: skip
plant("a slave that a lost request was about is waited for for ever", ReplicasManager, "settle",
      lambda right: lambda self, term: iter(()), needs="unknown", seed=45, shown="told")  # fmt: skip
plant("a slave reports what it has received and not synced", Follower, "position",
      lambda right: property(lambda self: _received(self, right)), seed=0, shown="often")  # fmt: skip
plant("what is written counts as synced", CommitPipeline, "stored_end",
      lambda right: property(lambda self: self._log.written), seed=1, shown="often")  # fmt: skip
plant("a sync of a file does nothing now and then", SimulatedFiles, "sync",
      lambda right: lambda self, fd: None if self.open_files[fd].length % 7 == 2 else right(self, fd), seed=0,
      shown="often")  # fmt: skip


def _stored(replicas: Any, right: Any) -> int:
    end: int = (
        replicas._store.pipeline.stored_end if replicas._epoch_follower is None else right.fget(replicas)
    )
    return end


def _received(follower: Any, right: Any) -> int:
    is_comparing = follower._compared < follower._compare_end
    end: int = (
        right.fget(follower) if is_comparing else min(follower._store.log.position, follower._next or 0)
    )
    return end


def _by_the_fastest(replicas: Any, right: Any) -> int:
    if replicas._epoch_follower is not None or not replicas._term.holds:
        found: int = right.fget(replicas)
        return found
    acked = [each.acked for each in replicas._by_id().values()]
    replicas._confirmed = max(
        replicas._confirmed, min(replicas._store.pipeline.stored_end, max(acked, default=-1))
    )
    confirmed: int = replicas._confirmed
    return confirmed


# --- fencing ---


class _WallClock:
    def __init__(self, clock: Any) -> None:
        self.now_ms = self.monotonic_ms = clock.now_ms


plant("a lease follows the clock on the wall", Term, "__init__",
      lambda right: (lambda self, clock, broker_id, lease_ms: right(self, _WallClock(clock), broker_id, lease_ms)),
      seed=0, shown="often")  # fmt: skip


# --- the log of a replaced master ---


def _keeps_all(own: Any, own_end: int, other: Any, other_end: int) -> Any:
    return (own[-1], own_end) if own else None


@contextmanager
def _nothing_is_compared() -> Iterator[None]:
    with patch.object(epochreplicas, "last_common", _keeps_all):
        with patch.object(Follower, "_compare", _believes):
            yield


def _believes(follower: Any, data: memoryview) -> memoryview:
    size = min(len(data), follower._compare_end - follower._compared)
    follower._compared += size
    return data[size:]


plant_context("a log is not taken back", _nothing_is_compared, seed=7)
plant("the ends of logs are not compared", Follower, "_compare", lambda right: _believes, needs="torn copy", seed=115,
      shown="told")  # fmt: skip
plant("what a master confirms counts before the ends of logs are compared", EpochFollower, "confirmed",
      lambda right: property(lambda self: _trusts(self)), needs="torn copy", seed=115, shown="told")  # fmt: skip


def _trusts(follower: Any) -> int:
    follower._confirmed = max(follower._confirmed, follower._said)
    confirmed: int = follower._confirmed
    return confirmed


plant("nothing before a hole in a log is found", cutback, "_entry_before", lambda right: _only_the_next,
      needs="torn copy", seed=2288)  # fmt: skip


def _only_the_next(queue: Any, offset: int) -> Any:
    entry = queue.entry(offset - 1) if offset > queue.min_offset else None
    return None if entry is None or entry[1] == FILLER_SIZE else entry


plant("a log is taken back too far", epochreplicas, "last_common", lambda right: lambda *logs: _too_far(right(*logs)),
      seed=1)  # fmt: skip


def _too_far(found: Any) -> Any:
    return found if found is None else (found[0], found[0].start)


plant("a master keeps holes that no slave copies", ControlledApp, "_handle_holes",
      lambda right: lambda self, store, report: None,
      hidden="no story has a power cut while the disk of the master stalls")  # fmt: skip
plant("a log that is being taken back is read", EpochReplicas, "is_sure", lambda right: property(lambda self: True),
      seed=8)  # fmt: skip
plant("consumers see what is not confirmed (7689)", EpochReplicas, "gates_readers",
      lambda right: property(lambda self: False), seed=0, shown="often")  # fmt: skip

plant("a cut of the log leaves its queue entries", cutback.CutBackJob, "_cut", lambda right: lambda self, queue: 0,
      needs="taken back", seed=29, shown="told")  # fmt: skip
plant("a slave never copies the offsets of groups", ConsumerOffsets, "follow", lambda right: lambda self, table: None,
      seed=0, shown="often")  # fmt: skip
plant("a slave never copies topics", Metadata, "_copy_topics", lambda right: lambda self, version, table: None,
      seed=0, shown="often")  # fmt: skip

# --- replicas that come back damaged ---


def _first_found(found: ReplicaSet, alive: Any, preferred: Any, *, unclean: bool) -> Choice:
    """The member with the lowest id, whatever it says of its log."""
    return Choice(min(found.heirs & alive.keys(), default=None))


def _too_few(found: ReplicaSet, alive: Any, preferred: Any, *, unclean: bool) -> Choice:
    choice = choose(found, alive, preferred, unclean=unclean)
    sound = [each for each in found.heirs & alive.keys() if not found.replicas[each].damage]
    if choice.master is not None or not sound:
        return choice
    return Choice(min(sound, key=lambda each: (alive[each].rank, each)))


def _forgets_the_end(table: Any, data: bytes, right: Callable[..., None]) -> None:
    right(table, data)
    for found in table.sets.values():
        found.confirmed, found.confirmed_epoch = 0, -1


def _takes_any_end(table: Any, found: ReplicaSet, end: int, epoch: int) -> None:
    found.confirmed, found.confirmed_epoch = end, epoch
    table.has_unsaved_ends = True


plant("membership alone makes a master", liveness, "choose", lambda right: _first_found, needs="spoilt", seed=10,
      shown="told")  # fmt: skip
plant("a master is elected by too few", liveness, "choose", lambda right: _too_few, needs="spoilt", seed=179,
      shown="told")  # fmt: skip
plant("a member that was started again counts at once", ReplicaSet, "has_restarted",
      lambda right: lambda self, broker_id: False, needs="spoilt", seed=10, shown="told")  # fmt: skip
plant("a start does not judge its log", controlled_app, "judge_member", lambda right: lambda *_: "", needs="spoilt",
      seed=10, shown="told")  # fmt: skip
plant("a controller that starts again knows no confirmed end", ReplicaTable, "load",
      lambda right: lambda self, data: _forgets_the_end(self, data, right), seed=10, shown="often")  # fmt: skip
plant("the confirmed end is what a master has said last", ReplicaTable, "confirm", lambda right: _takes_any_end,
      seed=10, shown="often")  # fmt: skip
plant("foreign epochs are believed", trustedlog, "_foreign_epochs", lambda right: lambda *_, **__: "", needs="spoilt",
      seed=10, shown="told")  # fmt: skip


def _forgets_heirs(
    table: Any, found: ReplicaSet, members: frozenset[int], right: Callable[..., None]
) -> None:
    right(table, found, members)
    found.eligible = frozenset()


@contextmanager
def _nothing_is_compared_later() -> Iterator[None]:
    with patch.object(Healing, "is_whole", property(lambda self: True)):
        with patch.object(Healing, "_go_on", lambda self: iter(())):
            yield


plant_context("a replica counts as in sync before all of its log is compared", _nothing_is_compared_later,
      needs="spoilt", seed=213, shown="told")  # fmt: skip
plant("a record that is healed gets no queue entry", LogMender, "_restore_entries",
      lambda right: lambda self, low, view: None, needs="spoilt", seed=224, shown="told")  # fmt: skip
plant("what is acknowledged is not noted", MemberNote, "acknowledge",
      lambda right: lambda self, epoch, position, confirmed: None, needs="alone", seed=313, shown="told")  # fmt: skip
plant("who had everything is forgotten when the set shrinks", ReplicaTable, "_put_members",
      lambda right: lambda self, found, members: _forgets_heirs(self, found, members, right), needs="shrunk",
      seed=372, shown="told")  # fmt: skip

# --- controllers ---

plant("an older state of the controller is believed", controller, "is_newer",
      lambda right: lambda claim, found: False, needs="changed", seed=17, shown="told")  # fmt: skip
plant("a master that is cut off from its slaves stays", Severance, "successor",
      lambda right: lambda self, found: None, needs="severed", seed=37, shown="told")  # fmt: skip
plant("a controller answers before its state is synced", StateFile, "save",
      lambda right: lambda self, content: _save_unsynced(self, content, right), seed=0, shown="often")  # fmt: skip


def _save_unsynced(file: Any, content: bytes, right: Callable[..., None]) -> None:
    with patch.object(type(file._files), "sync", lambda self, fd: None):
        with patch.object(type(file._files), "sync_directory", lambda self, path: None):
            right(file, content)


plant("anybody may be elected", Liveness, "choose",
      lambda right: lambda self, found, preferred, *, unclean: right(self, found, preferred, unclean=True),
      needs="majority", seed=76, shown="told")  # fmt: skip


def _knows_no_end(replicas: Any, args: Any, right: Callable[..., None]) -> None:
    right(replicas, *args)
    replicas._start_end = 0


def _keeps_the_set(table: Any, found: ReplicaSet, master: int | None) -> None:
    found.master = master
    found.master_epoch += 1
    found.in_sync_epoch += 1
    table.generation += 1


plant("a new master keeps the old SyncStateSet", ReplicaTable, "set_master",
      lambda right: _keeps_the_set, seed=2)  # fmt: skip


plant("a master that was started again counts slaves in that lack something", EpochReplicas, "__init__",
      lambda right: lambda self, *args: _knows_no_end(self, args, right), needs="return",
      hidden="the controller gives it a new term, whose begin slaves must have; RocketMQ's does not")  # fmt: skip
plant("a slave that was away is counted in with old tables", Metadata, "is_fresh",
      lambda right: property(lambda self: self.copied_ms is not None),
      needs="grown", seed=260, shown="told")  # fmt: skip
plant("a slave is counted in without tables", Metadata, "is_fresh", lambda right: property(lambda self: True),
      needs="grown lost", seed=5, shown="told")  # fmt: skip

# --- delays ---

plant("a delay is a little shorter", DelayService, "_time_left_ms",
      lambda right: lambda self, *entry: right(self, *entry) - 300, needs="delays", seed=13, shown="often")  # fmt: skip
plant("a start takes delayed messages as delivered", DelayService, "load",
      lambda right: lambda self: _all_delivered(self, right), needs="delays", seed=35)  # fmt: skip
plant("progress is taken over before the log has come so far", Metadata, "apply",
      lambda right: lambda self: _at_once(self, right), needs="tables", seed=110, shown="told")  # fmt: skip
plant("timers begin behind what waits", TimerService, "load", lambda right: lambda self: _no_timers(self, right),
      needs="delays", seed=35)  # fmt: skip


def _all_delivered(delays: Any, right: Callable[[Any], None]) -> None:
    right(delays)
    for level in delays._levels:
        level.next_offset = delays._store.offsets.max_offset(SCHEDULE_TOPIC, level.queue_id)


def _at_once(metadata: Any, right: Callable[[Any], None]) -> None:
    metadata._due_at = 0
    right(metadata)


def _no_timers(timers: Any, right: Callable[[Any], None]) -> None:
    right(timers)
    timers._queue_offset = timers._store.offsets.max_offset(TIMER_TOPIC, 0)


# --- transactions ---

plant("commits without an op message are not looked for", openhalves, "_find_commits", lambda right: lambda *_: None,
      needs="transactions", seed=73)  # fmt: skip
plant("a start takes half messages as decided", transactions, "recover",
      lambda right: lambda state: _none_open(state, right), needs="transactions", seed=8)  # fmt: skip


def _none_open(state: Any, right: Callable[[Any], Any]) -> Any:
    found = right(state)
    for offset in range(state.store.offsets.max_offset(TRANS_HALF_TOPIC, 0)):
        found.decisions.decide(offset)
    return found


# --- POP ---

plant("POP hands out without a check point", ReviveLog, "put_check_point",
      lambda right: lambda self, revive_queue, check_point: self._state.store.log.position,
      needs="pop", seed=8)  # fmt: skip
plant("what was popped is never revived", PopRevival, "_revive", lambda right: lambda self, *_: None, needs="pop",
      seed=8)  # fmt: skip

# --- routes ---

plant("a name server does not replace a master that it hears", RouteTable, "register",
      lambda right: lambda self, broker, *rest, **more: _unless_heard(self, broker, right, rest, more), needs="heard",
      seed=7, shown="told")  # fmt: skip
plant("a client never looks up a route again", ClientInstance, "route",
      lambda right: lambda self, topic, refresh=False: right(self, topic), needs="producer", seed=36)  # fmt: skip


def _unless_heard(table: Any, broker: Any, right: Callable[..., Any], rest: Any, more: Any) -> Any:
    known = table._brokers.get(broker.name)
    address = None if known is None else known.addresses.get(broker.broker_id)
    rival = None if address in (None, broker.address) else table._live.get((broker.cluster, address))
    if rival is not None and rival.session is not None and rival.session.open:
        raise Refusal(ResponseCode.SYSTEM_ERROR, "there is one")
    return (yield from right(table, broker, *rest, **more))


plant("a slave shows everything that it has", EpochFollower, "confirmed",
      lambda right: property(lambda self: INT64_MAX), seed=0, shown="often")  # fmt: skip
