"""Open transactions of a slave that acts as master: they go on at brokers of other names
(TransactionalMessageServiceImpl).

Each undecided half message is sent to another broker as what it was, a prepared message of its producer group. That
broker asks the group what became of it. The group's offset here passes a half message when it is stored there, so a
master that takes over this offset does not ask again.

A half message that holds a whole batch stays, and what follows it too: RocketMQ's brokers cannot commit it.
"""

from __future__ import annotations

from collections import deque

from mqspark.base.logs import sparing
from mqspark.broker.service import READ_BYTES, TICK_MS
from mqspark.broker.state.state import BrokerState
from mqspark.broker.state.writer import Outlet
from mqspark.broker.transaction.halfmessages import (
    TRANSACTION_ID,
    Half,
)
from mqspark.broker.transaction.openhalves import recover
from mqspark.errors import NotNow
from mqspark.message import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRANS_GROUP,
    TRANS_HALF_TOPIC,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_FIRST_OFFSET,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_PREPARED_TYPE,
    encode_stored_properties,
)
from mqspark.record.record import take_apart

_log = sparing(__name__, lines=5)

SLICE_MESSAGES = 128
HALF_RETRY_MS = 100


class EscapedHalves:
    """Lives as long as the slave acts: meanwhile nothing is stored here, so the half queue has an end."""

    def __init__(self, state: BrokerState, outlet: Outlet) -> None:
        self._state = state
        self._outlet = outlet
        self._decisions = recover(state).decisions
        self._next = self._decisions.base
        self._end = state.store.offsets.max_offset(TRANS_HALF_TOPIC, 0)
        self._noted: deque[tuple[int, int]] = deque()
        """(position of the outlet that must be durable, the offset that may be saved then)."""
        self._saved = self._next
        self.problem: str | None = None

    def tick(self) -> int:
        wait_ms = TICK_MS
        try:
            for _ in range(SLICE_MESSAGES):
                if not self._advance():
                    break
            else:
                wait_ms = 0
        except NotNow:
            wait_ms = HALF_RETRY_MS
        self.save()
        return wait_ms

    def _advance(self) -> bool:
        """Send the next open half message. Returns whether there was one. Raises NotNow."""
        store, offset = self._state.store, min(self._decisions.next_open(self._next), self._end)
        self._pass(offset)
        if offset >= self._end:
            return False
        result = store.reads.get(TRANS_HALF_TOPIC, 0, offset, 1, READ_BYTES)
        if not result.buffers:
            if result.next_offset <= offset:
                return False
            self._pass(min(result.next_offset, self._end))  # deleted, or lost
            return True
        half = Half(take_apart(result.buffers[0]))
        if half.offset > offset:
            self._pass(half.offset)
            return True
        if half.is_batch:
            self._report(
                f"the batch at {offset} of {TRANS_HALF_TOPIC}, and what follows, waits for the master"
            )
            return False
        self._escape(half)
        self._pass(offset + 1)
        return True

    def _escape(self, half: Half) -> None:
        target = half.real_queue
        if target is None or half.group is None:
            _log.error("half message %d has no group or no real topic: nobody can be asked", half.offset)
            return
        own = (REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_ID, TRANSACTION_CHECK_TIMES, TRANSACTION_FIRST_OFFSET)
        properties = {name: value for name, value in half.properties.items() if name not in own}
        properties[TRANSACTION_PREPARED] = "true"
        parts = half.parts
        flags = parts.sys_flag & ~TRANSACTION_MASK | TRANSACTION_PREPARED_TYPE
        self._outlet.relay(parts._replace(sys_flag=flags), *target, encode_stored_properties(properties))

    def _pass(self, offset: int) -> None:
        if offset > self._next:
            self._next = offset
            self._noted.append((self._outlet.end, offset))

    def save(self) -> None:
        """Note what is stored elsewhere."""
        durable, due = self._outlet.durable, self._saved
        while self._noted and self._noted[0][0] <= durable:
            _, due = self._noted.popleft()
        if due != self._saved:
            self._saved = due
            self._state.offsets.commit(TRANS_GROUP, TRANS_HALF_TOPIC, 0, due, is_brokers=True)

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            _log.warning("%s", problem)
