"""Cleaning on demand (AdminBrokerProcessor)."""

from __future__ import annotations

from mqspark.broker.state.state import BrokerState
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, ok
from mqspark.protocol.session import Session

__all__ = ["HousekeepingProcessor"]


class HousekeepingProcessor:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.handlers: dict[int, Handler] = {
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused_topics,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_log,
        }

    def clean_unused_topics(self, session: Session, command: Command) -> bytes:
        """Delete the queues of topics that are no longer configured."""
        state = self._state
        state.store.delete_topics(
            [
                name
                for name in state.store.offsets.queues()
                if state.topics.get(name) is None and not state.topics.is_system(name)
            ]
        )
        return ok(command)

    def clean_expired_queues(self, session: Session, command: Command) -> bytes:
        """Delete queue entries whose records are no longer in the log."""
        self._state.store.clean_expired_queues()
        return ok(command)

    def delete_expired_log(self, session: Session, command: Command) -> bytes:
        """Delete segments older than fileReservedTime without waiting for deleteWhen."""
        self._state.store.clean_expired()
        return ok(command)
