"""Ordered pops: a queue is blocked for its group until the messages handed out are acknowledged or their
invisible time has expired (ConsumerOrderInfoManager, ConsumerOrderInfoLockManager). Kept in
``consumerOrderInfo.json``.

There are no check points: the committed offset stays at the first open message, and the next pop starts there
again. A pop with the same attempt id as the last one is a retry of it, and is not blocked by it.

Facts: docs/rocketmq/pop.md#ordered-pops.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterable, Sequence

from msgspec import field

from mqspark.base.bounded import BoundedMap, Ledger, weigh
from mqspark.base.config import Limit
from mqspark.base.names import sound_only
from mqspark.broker.state.state import BrokerState
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import Body, decode_table, to_document
from mqspark.protocol.receipts import NORMAL
from mqspark.protocol.session import Session

ILLEGAL = -1
"""Result for a message that was not handed out."""

FORGET_MS = 24 * 3600 * 1000
"""A queue without pops for this time is dropped (CLEAN_SPAN_FROM_LAST)."""

_Key = tuple[str, str, int]
"""topic, group, queue id"""

_QUEUE_BYTES = 1_200
_MESSAGE_BYTES = 310
_MOST_STEPS = list(range(32))
"""As many as one pop hands out."""
_NO_QUEUE = -1
_SPARE_TIMES = 1_000


class _Info(Body):
    """As in the file; absent members are omitted."""

    attempt_id: str | None = field(default=None, name="a")
    acked: int = field(default=0, name="cm")
    """Bit i: message i is acknowledged."""
    invisible_time_ms: int | None = field(default=None, name="i")
    last_ms: int = field(default=0, name="l")
    """Time of the last pop."""
    steps: list[int] | None = field(default=None, name="o")
    """The first queue offset, then the distance of each other offset from it."""
    counts: dict[int, int] | None = field(default=None, name="oc")
    """Queue offset → how often the message was handed out before."""
    next_visible_ms: dict[int, int] | None = field(default=None, name="ot")
    """Queue offset → when the message may be handed out again, if that was changed."""
    pop_time: int = 0

    @property
    def offsets(self) -> list[int]:
        steps = self.steps or []
        return [steps[0], *(steps[0] + step for step in steps[1:])] if steps else []

    def visible_ms(self) -> int | None:
        """When the last open message may be handed out again; None if none is open."""
        times = [
            (self.next_visible_ms or {}).get(offset, self.pop_time + (self.invisible_time_ms or 0))
            for index, offset in enumerate(self.offsets)
            if not self.acked >> index & 1
        ]
        return max(times, default=None)


class _File(Body):
    table: dict[str, dict[int, _Info]] = field(default_factory=dict)


class PopOrder:
    """A Table of ``SavedTable``."""

    def __init__(self, state: BrokerState, name: str = "popOrder") -> None:
        self._state = state
        self.ledger = Ledger(
            name,
            Limit(state.config, "max_pop_table_bytes"),
            "PopOrder._free",
            "PopOrder._free_at",
            "_Info.steps",
            "_Info.counts",
            "_Info.next_visible_ms",
        )
        self._infos: BoundedMap[_Key, _Info] = self.ledger.map(_QUEUE_BYTES, _info_bytes)
        self._free: list[tuple[int, _Key]] = []
        """A heap of times at which a queue may be free again. Each entry is verified when its time comes."""
        self._free_at: dict[_Key, int] = {}
        """The latest such time of each queue, so that an acknowledgement need not add an entry."""
        self.generation = 0

    # --- events ---

    def admit(self, session: Session, group: str, topic: str, attempt_id: str | None) -> None:
        """Check that a peer may make an entry for a pop of the queue. Raises TableFull."""
        largest = _Info(attempt_id=attempt_id, steps=_MOST_STEPS)
        self._infos.admit((topic, group, _NO_QUEUE), largest, session)

    def is_blocked(self, topic: str, group: str, queue_id: int, attempt_id: str | None = None) -> bool:
        info = self._infos.get((topic, group, queue_id))
        if info is None or (attempt_id and info.attempt_id == attempt_id):
            return False
        visible_ms = info.visible_ms()
        return visible_ms is not None and self._state.clock.now_ms() < visible_ms

    def hand_out(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        *,
        session: Session,
        attempt_id: str | None,
        pop_time_ms: int,
        invisible_time_ms: int,
    ) -> list[str]:
        """Block the queue. ``session``: who pops. Returns the entries of ``orderCountInfo``: how often each message was
        handed out before, and the minimum."""
        key = topic, group, queue_id
        old = self._infos.get(key)
        counts: dict[int, int] = {}
        if old is not None:
            before = old.counts or {}
            if attempt_id and old.attempt_id == attempt_id:
                counts = before
            else:
                again = set(old.offsets).intersection(offsets)
                counts = {offset: before.get(offset, 0) + 1 for offset in offsets if offset in again}
        first = offsets[0]
        info = _Info(
            attempt_id=attempt_id,
            invisible_time_ms=invisible_time_ms,
            last_ms=self._state.clock.now_ms(),
            steps=[first, *(offset - first for offset in offsets[1:])],
            counts=counts,
            pop_time=pop_time_ms,
        )
        self._infos.hold(key, info, session)
        self._changed(key, info)
        entries = [f"{NORMAL} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
        least = min(counts.values(), default=0) if len(counts) == len(offsets) else 0
        return [*entries, f"{NORMAL} {queue_id} {least}"]

    def ack(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> int | None:
        """The group's new offset; None if it does not change, ILLEGAL for a message that was not handed out."""
        key = topic, group, queue_id
        info = self._infos.get(key)
        if info is None:
            # The state was lost in a crash or expired (FORGET_MS), so whether earlier messages were acknowledged
            # is unknown.
            committed = max(0, self._state.offsets.query(group, topic, queue_id))
            return offset + 1 if offset == committed else None
        offsets = info.offsets
        if not offsets:
            return ILLEGAL
        if info.pop_time != pop_time_ms:
            return None
        if offset not in offsets:
            return ILLEGAL
        info.acked |= 1 << offsets.index(offset)
        self._changed(key, info)
        for index, candidate in enumerate(offsets):
            if not info.acked >> index & 1:
                return candidate
        return offsets[-1] + 1

    def change(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int, visible_ms: int
    ) -> bool:
        """The message may be handed out again at ``visible_ms``. False if that pop does not hold it."""
        key = topic, group, queue_id
        info = self._infos.get(key)
        if info is None or info.pop_time != pop_time_ms or offset not in info.offsets:
            return False
        info.next_visible_ms = {**(info.next_visible_ms or {}), offset: visible_ms}
        self._changed(key, info)
        return True

    def counts(self, topic: str, group: str, queue_id: int) -> dict[int, int]:
        """Queue offset → how often the message was handed out before the last pop, of those that were."""
        info = self._infos.get((topic, group, queue_id))
        return {} if info is None else info.counts or {}

    def suspend(self, topic: str, group: str, queue_id: int, pop_time_ms: int, visible_ms: int) -> None:
        """All messages of that pop may be handed out again at ``visible_ms``, as if they had not been
        (MemoryConsumerOrderInfoManager.suspendQueue)."""
        key = topic, group, queue_id
        info = self._infos.get(key)
        if info is None or info.pop_time != pop_time_ms:
            return
        info.counts = {offset: max(0, count - 1) for offset, count in (info.counts or {}).items()}
        info.next_visible_ms = None
        info.invisible_time_ms = visible_ms - pop_time_ms
        self._changed(key, info)

    def __len__(self) -> int:
        return len(self._infos)

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """The group's offset was set from elsewhere."""
        if self._infos.pop((topic, group, queue_id), None) is not None:
            self.generation += 1

    def freed(self) -> list[_Key]:
        """Queues that became unblocked by time since the last call."""
        now_ms = self._state.clock.now_ms()
        freed = []
        while self._free and self._free[0][0] <= now_ms:
            _, key = heapq.heappop(self._free)
            if self._free_at.get(key, 0) <= now_ms:
                self._free_at.pop(key, None)
            if key in self._infos and not self.is_blocked(*key):
                freed.append(key)
        return freed

    def _changed(self, key: _Key, info: _Info) -> None:
        self.generation += 1
        self._note(key, info)

    def _note(self, key: _Key, info: _Info) -> None:
        visible_ms = info.visible_ms()
        if visible_ms is not None and self._free_at.get(key) != visible_ms:
            self._free_at[key] = visible_ms
            heapq.heappush(self._free, (visible_ms, key))
            if len(self._free) > 2 * len(self._free_at) + _SPARE_TIMES:  # most entries are stale
                self._free = [(free_ms, name) for name, free_ms in self._free_at.items()]
                heapq.heapify(self._free)

    # --- file ---

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Returns the encoder of the file, which works on a copy."""
        self.forget_old()
        table: dict[str, dict[int, _Info]] = {}
        for (topic, group, queue_id), info in self._infos.items():
            table.setdefault(f"{topic}@{group}", {})[queue_id] = copy.copy(info)
        return lambda: [fastjson.dumps_pretty(to_document(_File(table=table))).encode()]

    def forget_old(self) -> None:
        """Drop entries of topics or groups that do not exist, and those unused for FORGET_MS."""
        state = self._state
        oldest_ms = state.clock.now_ms() - FORGET_MS if state.store.upkeep.wall_time.is_trusted else 0
        for key, info in list(self._infos.items()):
            topic = state.topics.get(key[0])
            if (
                info.last_ms < oldest_ms
                or topic is None
                or key[2] >= topic.read_queue_nums
                or state.subscriptions.configured(key[1]) is None
            ):
                del self._infos[key]

    def load(self, data: bytes) -> None:
        """Raises ProtocolError."""
        table = decode_table(_File, data).table
        for name, queues in sound_only("ordered pops", table, separator="@").items():
            topic, at, group = name.partition("@")
            for queue_id, info in queues.items():
                if at:
                    key = topic, group, queue_id
                    self._infos.keep(key, info)
                    self._note(key, info)


def _info_bytes(info: _Info) -> int:
    return weigh(info.attempt_id) + _MESSAGE_BYTES * len(info.steps or ())
