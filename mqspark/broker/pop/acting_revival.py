"""Revival by a slave that acts as master: it stores neither copies nor check points.

Copies go to brokers of other names, which take them for the retry topic. Check points and acknowledgements that become
due meanwhile would enter the revive topic on a master. Here they are kept in memory, as if they followed the last
record of their queue. The timer messages that carried them count as delivered once they need no more work.
(RocketMQ sends them to the revive topic of another broker, which asks this one for the messages.)

A check point of a third broker's name, which the dead master had taken, and whose messages that broker does not give
now, goes on to the revive topic of yet another master, which asks later. (RocketMQ's slave writes it to its own log,
which takes nothing, and forgets it.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.config import Limit
from mqspark.broker.pop.revive import EARLY_BYTES, MAX_EARLY_ACKS, PopRevival, ReviveQueue
from mqspark.broker.pop.revivelog import MAX_CHECK_POINT_MESSAGES, CheckKey, RemoteLog
from mqspark.broker.service import READ_MESSAGES
from mqspark.broker.state.acks import Deferred
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft, Outlet
from mqspark.errors import InvalidMessage
from mqspark.protocol.session import Session
from mqspark.record.record import Parts

FORGOTTEN_MS = 60_000
"""How long an acknowledgement is kept after the time of its check point, which may arrive late."""
FORGET_INTERVAL_MS = 1_000


class CopyBridge(Outlet, Protocol):
    """Sends copies, and records as they are, to masters of other names; both have positions in one order."""

    def send(self, draft: Draft, place: None) -> int:
        """The position of the record. Raises NotNow."""


class _ActingRevivalLog(RemoteLog):
    """A revive log of which new records are stored at other brokers."""

    def __init__(self, state: BrokerState, bridge: CopyBridge) -> None:
        super().__init__(state)
        self._bridge = bridge

    def _forward(self, draft: Draft, key: CheckKey, *, is_check_point: bool) -> int:
        return self._bridge.send(draft, None)


class _KeptAck(NamedTuple):
    until_ms: int
    """The wall time from which it may be forgotten."""
    offsets: set[int]


class ActingAcks:
    """Acknowledgements of check points of the dead master that are not due yet. One user has no more than a share."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._forget_ms = 0
        self.ledger = Ledger("actingAcknowledgements", Limit(state.config, "max_pop_table_bytes"))
        self._kept: BoundedMap[CheckKey, _KeptAck] = self.ledger.map(EARLY_BYTES, most=MAX_EARLY_ACKS)

    def admit(self, session: Session, key: CheckKey, revive_ms: int) -> None:
        """Make a place for the acknowledgements of a check point that is due at ``revive_ms``, wall time. Raises
        TableFull, and InvalidMessage for a time that no check point can have."""
        if key in self._kept:
            return
        now_ms = self._state.clock.now_ms()
        longest_ms = self._state.store_config.timer_max_delay_sec * 1000
        if revive_ms - now_ms > longest_ms:
            raise InvalidMessage(
                f"messages that are invisible for {revive_ms - now_ms} ms more, the longest is {longest_ms}",
                field="it",
            )
        self._forget(now_ms)
        self._kept.put(key, _KeptAck(revive_ms + FORGOTTEN_MS, set()), session)

    def add(self, key: CheckKey, offsets: Sequence[int]) -> None:
        """Note acknowledgements of an admitted check point. One that has been revived meanwhile is none any longer."""
        if key in self._kept:
            known = self._kept[key].offsets
            known.update(offsets[: MAX_CHECK_POINT_MESSAGES - len(known)])

    def take(self, key: CheckKey) -> set[int]:
        """The check point has come."""
        return self._kept.pop(key).offsets if key in self._kept else set()

    def _forget(self, now_ms: int) -> None:
        """What no check point came for in time, about once a second."""
        if now_ms >= self._forget_ms:
            self._forget_ms = now_ms + FORGET_INTERVAL_MS
            for key in [key for key, kept in self._kept.items() if kept.until_ms <= now_ms]:
                del self._kept[key]

    def clear(self) -> None:
        self._kept.clear()


class ActingRevival(PopRevival):
    """The number of records in memory is bounded by the bridge that holds their positions."""

    def __init__(
        self,
        state: BrokerState,
        outlet: CopyBridge,
        settle: Callable[[int], None],
        timer_is_idle: Callable[[], bool],
        acks: ActingAcks,
    ) -> None:
        """``outlet``: for copies, and for check points that are put off. ``settle`` is called with the positions that
        ``keep`` was given. ``acks``: an empty table."""
        self._copied = Deferred()
        super().__init__(state, _ActingRevivalLog(state, outlet), self._copied, timer_is_idle, outlet)
        self._settle = settle
        self._late: dict[int, deque[tuple[Parts, int]]] = {}
        self._taken: dict[int, deque[tuple[int, int]]] = {}
        """Queue id → (offset after the end of the queue, position) of what was read from ``_late``."""
        self._acks = acks

    @property
    def topic(self) -> str:
        """The revive topic."""
        return self._log.topic

    def keep(self, queue_id: int, record: Parts, position: int) -> None:
        """A record of the revive topic is due."""
        if not 0 <= queue_id < len(self._queues):
            self._settle(position)
            return
        self._late.setdefault(queue_id, deque()).append((record, position))

    def admit(self, session: Session, queue_id: int, key: CheckKey, revive_ms: int) -> None:
        """A client will acknowledge messages that become visible again at ``revive_ms``. Raises as ``ActingAcks``."""
        if key not in self._queues[queue_id].open:
            self._acks.admit(session, key, revive_ms)

    def acknowledge(self, queue_id: int, key: CheckKey, offsets: Sequence[int]) -> None:
        """A client has processed messages of an admitted check point."""
        check_point = self._queues[queue_id].open.get(key)
        if check_point is None:
            self._acks.add(key, offsets)
            return
        for offset in offsets:
            check_point.ack(offset)

    def _pop_early(self, queue: ReviveQueue, key: CheckKey) -> Iterable[int]:
        return {*super()._pop_early(queue, key), *self._acks.take(key)}

    def tick(self) -> int:
        self._copied.release(self._outlet.durable)
        return super().tick()

    def _read(self, queue: ReviveQueue) -> bool:
        store, queue_id = self._state.store, queue.queue_id
        if queue.next_offset < store.offsets.max_offset(self._log.topic, queue_id):
            return super()._read(queue)
        late = self._late.get(queue_id)
        if not late:
            return False
        taken = self._taken.setdefault(queue_id, deque())
        now_ms = self._state.clock.now_ms()
        for _ in range(min(len(late), READ_MESSAGES)):
            record, position = late.popleft()
            self._take(queue, record._replace(queue_offset=queue.next_offset, store_timestamp_ms=now_ms))
            taken.append((queue.next_offset, position))
            queue.next_offset += 1
        queue.last_read_ms = self._state.clock.monotonic_ms()
        if not queue.open:
            self._commit(queue)
        return True

    def _finished(self, queue: ReviveQueue, done: int, is_durable: bool) -> None:
        end = self._state.store.offsets.max_offset(self._log.topic, queue.queue_id)
        if end > 0:
            super()._finished(queue, min(done, end - 1), is_durable)
        taken = self._taken.get(queue.queue_id)
        while is_durable and taken and taken[0][0] <= done:
            self._settle(taken.popleft()[1])

    def _retry_queue(self, key: CheckKey, queue_id: int) -> tuple[str, int]:
        return self._retry_name(key), queue_id
