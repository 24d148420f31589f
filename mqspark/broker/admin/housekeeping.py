"""Cleaning on demand (AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable

from mqspark.broker.admin.change import AnswerWhenSafe
from mqspark.broker.admin.topicadmin import CHANGED_AT_ONCE, SOUGHT_AT_ONCE
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.session import Session
from mqspark.protocol.slices import ESSENTIAL, Slices


class HousekeepingProcessor:
    def __init__(self, state: BrokerState, change: AnswerWhenSafe, knows_topics: Callable[[], bool]) -> None:
        """``knows_topics``: whether the table of topics is not an older one than its master's."""
        self._state = state
        self._change = change
        self._knows_topics = knows_topics
        self.handlers: dict[int, Handler] = {
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused_topics,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_log,
        }

    def clean_unused_topics(self, session: Session, command: Command) -> Slices:
        """Delete the queues of topics that are no longer configured. Raises TableFull, Refusal."""
        if not self._knows_topics():
            raise Refusal(ResponseCode.SYSTEM_BUSY, "this slave does not know its master's topics yet")
        state = self._state
        unused: list[str] = []
        for number, name in enumerate(state.store.offsets.topics(), 1):
            if state.topics.get(name) is None and not state.topics.is_system(name):
                unused.append(name)
            if number % SOUGHT_AT_ONCE == 0:
                yield
        for first in range(0, len(unused), CHANGED_AT_ONCE):
            some = [name for name in unused[first : first + CHANGED_AT_ONCE] if name not in state.topics]
            for name in some:
                state.store.deletions.admit(name)
            state.store.delete_topics(some)
            yield ESSENTIAL
        self._change(session, command, topics=True)
        return None

    def clean_expired_queues(self, session: Session, command: Command) -> bytes:
        """Delete queue entries whose records are no longer in the log."""
        self._state.store.clean_expired_queues()
        return ok(command)

    def delete_expired_log(self, session: Session, command: Command) -> bytes:
        """Delete segments older than fileReservedTime without waiting for deleteWhen."""
        self._state.store.clean_expired()
        return ok(command)
