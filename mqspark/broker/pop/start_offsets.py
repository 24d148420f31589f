"""Start offsets of pops (PopMessageProcessor.getPopOffset, PopBufferMergeService).

A group's committed offset advances only when the check point is on disk, because until then nothing on disk would
bring the messages back after a crash. In the meantime the next pop continues from an offset in memory.
"""

from __future__ import annotations

from mqspark.broker.state.state import BrokerState
from mqspark.message import RETRY_PREFIX
from mqspark.protocol.headers.client_headers import INIT_MIN
from mqspark.protocol.session import Session

_Key = tuple[str, str, int]


class _Ahead:
    """How far a queue has been handed out beyond the committed offset."""

    __slots__ = ("is_void", "next_offset", "steps")

    def __init__(self) -> None:
        self.next_offset = 0
        self.steps = 0
        self.is_void = False
        """The offset was reset in the meantime."""


class Step:
    """One pop's progress in one queue; it takes effect when the check point is on disk."""

    __slots__ = ("_ahead", "key", "next_offset")

    def __init__(self, key: _Key, ahead: _Ahead, next_offset: int) -> None:
        self.key = key
        self._ahead = ahead
        self.next_offset = next_offset

    @property
    def ahead(self) -> _Ahead:
        return self._ahead


class PopOffsets:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._ahead: dict[_Key, _Ahead] = {}

    def peek(self, group: str, topic: str, queue_id: int) -> int:
        """The offset at which a pop that begins with the first message would start; changes nothing."""
        offset = self._state.offsets.query(group, topic, queue_id)
        if offset < 0:
            offset = self._first(topic, queue_id, INIT_MIN)
        ahead = self._ahead.get((topic, group, queue_id))
        return offset if ahead is None else max(offset, ahead.next_offset)

    def begin(
        self, session: Session, group: str, topic: str, queue_id: int, init_mode: int
    ) -> tuple[int, bool]:
        """The start offset of this pop of ``session``, and whether it comes from a reset. A group's first offset is
        committed at once."""
        offsets = self._state.offsets
        reset = offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self.void(group, topic, queue_id)
            offsets.commit(group, topic, queue_id, reset, session)
            return reset, True
        offset = offsets.query(group, topic, queue_id)
        if offset < 0:
            offset = self._first(topic, queue_id, init_mode)
            offsets.commit(group, topic, queue_id, offset, session)
        ahead = self._ahead.get((topic, group, queue_id))
        return (offset if ahead is None else max(offset, ahead.next_offset)), False

    def step(self, group: str, topic: str, queue_id: int, next_offset: int) -> Step:
        """The next pop starts at ``next_offset``. The step must be settled."""
        key = (topic, group, queue_id)
        ahead = self._ahead.get(key)
        if ahead is None:
            ahead = self._ahead[key] = _Ahead()
        ahead.next_offset = next_offset
        ahead.steps += 1
        return Step(key, ahead, next_offset)

    def settle(self, step: Step, *, is_durable: bool) -> None:
        """The check point is on disk, or failed."""
        ahead = step.ahead
        ahead.steps -= 1
        if ahead.is_void:
            return
        topic, group, queue_id = step.key
        if is_durable:
            self._state.offsets.commit(group, topic, queue_id, step.next_offset)
        if not ahead.steps or not is_durable:
            ahead.is_void = True
            del self._ahead[step.key]

    def void(self, group: str, topic: str, queue_id: int) -> None:
        """The offset is set from elsewhere: pending steps commit nothing."""
        ahead = self._ahead.pop((topic, group, queue_id), None)
        if ahead is not None:
            ahead.is_void = True

    def _first(self, topic: str, queue_id: int, init_mode: int) -> int:
        store = self._state.store
        first = max(0, store.offsets.sure_min_offset(topic, queue_id))
        if init_mode == INIT_MIN or topic.startswith(RETRY_PREFIX):
            return first
        if first == 0 and self._state.memory.has_all_of(topic, queue_id):
            return 0
        return max(0, store.offsets.max_offset(topic, queue_id) - 1)
