"""Notifications for lite consumers that pop by themselves, after there is something to pop (the simple consumer behind
RocketMQ's proxy; NotificationProcessor since 5.5.1).

Such a request names a client, and is answered when the client has an event. It takes none: the pop that follows does.
"""

from __future__ import annotations

from mqspark.broker.lite.liteclients import LiteClients
from mqspark.broker.lite.liteparked import LiteParked, LiteWaiter
from mqspark.broker.state.state import BrokerState
from mqspark.errors import TableFull
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_response
from mqspark.protocol.dispatch import Refusal, ok
from mqspark.protocol.headers.client_headers import NotificationRequestHeader, NotificationResponseHeader
from mqspark.protocol.session import Session


class LiteWatch:
    def __init__(self, state: BrokerState, clients: LiteClients) -> None:
        self._state = state
        self._clients = clients
        self.parked: LiteParked[LiteWaiter] = LiteParked(
            state, clients, "parkedLiteNotifications", RequestCode.NOTIFICATION
        )

    def notify(
        self, session: Session, command: Command, header: NotificationRequestHeader, wait_ms: int
    ) -> bytes | None:
        """A notification whose topic and group are checked already. Raises Refusal."""
        if not header.client_id:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, "the notification of a lite consumer names no client"
            )
        client_id, group, topic = header.client_id, header.consumer_group, header.topic
        self._clients.check(client_id, session)
        has_event = self._clients.has_event(client_id, group, topic)
        if has_event or wait_ms <= 0 or command.is_oneway:
            return ok(command, NotificationResponseHeader(has_msg=has_event))
        deadline_ms = self._state.clock.monotonic_ms() + wait_ms
        waiter = LiteWaiter(session, command.opaque, client_id, group, topic, deadline_ms)
        remark: str | None = None
        try:
            if self.parked.offer(waiter):
                return None
        except TableFull as error:
            remark = str(error)
        return ok(command, NotificationResponseHeader(has_msg=False, polling_full=True), remark=remark)

    def wake(self, client_id: str) -> None:
        """Answer one notification of a client that has an event."""
        while (waiter := self.parked.first(client_id)) is not None:
            if not self._clients.has_event(client_id, waiter.group, waiter.topic):
                return
            self.parked.remove(waiter)
            if not waiter.is_refused():
                _answer(waiter, has_message=True)
                return

    def expire(self) -> None:
        for waiter in self.parked.expired():
            has_event = self._clients.has_event(waiter.client_id, waiter.group, waiter.topic)
            _answer(waiter, has_message=has_event)


def _answer(waiter: LiteWaiter, *, has_message: bool) -> None:
    header = NotificationResponseHeader(has_msg=has_message)
    waiter.session.send(encode_response(waiter.opaque, ResponseCode.SUCCESS, header))
