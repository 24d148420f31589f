"""POP by a slave that acts as master: its check points are stored by masters of other names (PopMessageProcessor,
PopBufferMergeService with EscapeBridge).

A pop is answered, and the group's offset moves on, when such a master has the check point. That master revives
unacknowledged messages: it asks the broker of this broker's name for them. An acknowledgement goes to the master that
has its check point; for messages that the dead master handed out, it goes to the revival here. (RocketMQ's slave
answers first, and forgets its check points when it dies.)

Must not know connections.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.config import Limit
from mqspark.base.shares import NOBODY
from mqspark.broker.pop.ack import AckProcessor
from mqspark.broker.pop.acting_revival import ActingAcks, ActingRevival
from mqspark.broker.pop.poporder import PopOrder
from mqspark.broker.pop.popprocessor import PopProcessor
from mqspark.broker.pop.revivelog import CheckKey, RemoteLog
from mqspark.broker.pop.start_offsets import PopOffsets
from mqspark.broker.state.acks import Acks, Deferred
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Draft
from mqspark.errors import NotNow
from mqspark.message import TIMER_DELIVER_MS, parse_number
from mqspark.protocol.dispatch import Handler, merged
from mqspark.protocol.session import Session

FORGET_MS = 10_000
"""How long a check point is remembered after its time."""


class RevivePlace(NamedTuple):
    """A queue of the revive topic at another broker."""

    broker_name: str
    queue_id: int


class RecordBridge(Protocol):
    """Sends records to masters of other names. ``durable``: everything put before is stored there."""

    @property
    def durable(self) -> int: ...

    placed: Callable[[int, RevivePlace], None]
    """Called with the position of a record and where it is stored."""

    def send(self, draft: Draft, place: RevivePlace | None) -> int:
        """The position of the record. ``place``: only there. Raises NotNow."""


_PLACE_BYTES = 600
"""What a check point weighs in all tables."""


class _ActingPopLog(RemoteLog):
    """A revive log at other brokers; its positions are the bridge's."""

    def __init__(self, state: BrokerState, bridge: RecordBridge) -> None:
        super().__init__(state)
        self._bridge = bridge
        bridge.placed = self._was_placed
        self.revival: ActingRevival | None = None
        self._under_way: dict[int, CheckKey] = {}
        """Position → check point whose place is not known yet."""
        self._ends: list[tuple[int, CheckKey]] = []
        """A heap of (when it may be forgotten, wall ms; check point)."""
        self.ledger = Ledger(
            "escapedCheckPoints",
            Limit(state.config, "max_pop_table_bytes"),
            "_ActingPopLog._ends",
            "_ActingPopLog._under_way",
        )
        self._places: BoundedMap[CheckKey, RevivePlace | None] = self.ledger.map(_PLACE_BYTES)
        """Check points that were put from here, to their places; None: under way."""

    def admit_ack(
        self, session: Session, revive_queue: int, key: CheckKey, invisible_time_ms: int, entries: int = 1
    ) -> str:
        """What cannot be kept is refused here: at the end of the turn it would cost others theirs."""
        owner = super().admit_ack(session, revive_queue, key, invisible_time_ms, entries)
        if key not in self._places:
            self._revival.admit(session, revive_queue, key, key.pop_time_ms + invisible_time_ms)
        elif self._places[key] is None:
            raise NotNow("its check point is not stored yet")
        return owner

    def put_ack(
        self,
        revive_queue: int,
        key: CheckKey,
        invisible_time_ms: int,
        offsets: Sequence[int],
        owner: str = NOBODY,
    ) -> int:
        if key in self._places:
            return super().put_ack(revive_queue, key, invisible_time_ms, offsets, owner)
        self._revival.acknowledge(revive_queue, key, offsets)
        self._state.acknowledgements.hold_until(owner, key.pop_time_ms + invisible_time_ms)
        return 0

    @property
    def _revival(self) -> ActingRevival:
        if self.revival is None:
            raise NotNow("this broker is a slave: its master stores messages")
        return self.revival

    def _forward(self, draft: Draft, key: CheckKey, *, is_check_point: bool) -> int:
        self._forget()
        if not is_check_point:
            place = self._places.get(key)
            if place is None:
                raise NotNow("its check point is not stored yet")
            return self._bridge.send(draft, place)
        if not self._places.has_room_for(key, None):
            raise NotNow("too many popped messages are not acknowledged")
        position = self._bridge.send(draft, None)
        if key not in self._places:
            due_ms = parse_number(draft.properties[TIMER_DELIVER_MS]) or 0
            heapq.heappush(self._ends, (due_ms + FORGET_MS, key))
        self._places.keep(key, None)
        self._under_way[position] = key
        return position

    def _was_placed(self, position: int, place: RevivePlace) -> None:
        key = self._under_way.pop(position, None)
        if key is not None and key in self._places:
            self._places.replace(key, place)

    def _forget(self) -> None:
        now_ms = self._state.clock.now_ms()
        while self._ends and self._ends[0][0] < now_ms:
            del self._places[heapq.heappop(self._ends)[1]]

    def clear(self) -> None:
        self._places.clear()
        self._ends.clear()
        self._under_way.clear()


class ActingPops:
    """Serves pops and their acknowledgements while a slave acts. Pops still in progress at the ``end`` count as not
    handed out."""

    def __init__(
        self,
        state: BrokerState,
        bridge: RecordBridge,
    ) -> None:
        self._bridge = bridge
        self._answers, self._durably = Deferred(), Deferred()
        self._waiting = Acks(state.clock, state.stats.rpc)
        self._log = _ActingPopLog(state, bridge)
        self._offsets = PopOffsets(state)
        order = PopOrder(state, "actingPopOrder")
        self._pops = PopProcessor(
            state, self._log, self._offsets, order, self._answers, self._durably, "actingParkedPops"
        )
        self._acks = AckProcessor(state, self._log, order, self._waiting, self._pops.wake)
        self.handlers: dict[int, Handler] = merged(self._pops.handlers, self._acks.handlers)
        self.kept_acks = ActingAcks(state)
        """For the revival."""
        parts = self._log, self._pops.parked, order, self.kept_acks
        self.ledgers = tuple(part.ledger for part in parts)

    def begin(self, revival: ActingRevival) -> None:
        """``revival``: takes acknowledgements of what the dead master handed out."""
        self._log.revival = revival

    def tick(self) -> None:
        self._pops.expire()

    def hand_out_no_more(self) -> None:
        self._pops.send_away()

    def end_turn(self) -> None:
        self._acks.end_turn()
        self._waiting.end_turn()
        self._pops.end_turn()
        self.release()

    def release(self) -> None:
        """Other brokers may have stored more."""
        durable = self._bridge.durable
        self._waiting.release(durable)
        self._answers.release(durable)
        self._durably.release(durable)

    def end(self) -> None:
        self.end_turn()
        self._answers.fail()
        self._durably.fail()
        self._waiting.fail("this broker no longer acts as the master")
        self._pops.send_away()
        self._log.revival = None
        self._log.clear()
        self.kept_acks.clear()
