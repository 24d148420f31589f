"""A broker's own extension points: sends, deliveries and what the store makes visible (SendMessageHook,
ConsumeMessageHook, MessageArrivingListener). Those of all servers are in ``mqspark.protocol.extending``.

Must not know who implements them. A broker without extensions has none of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from mqspark.base.bounded import text_bytes
from mqspark.broker.service import READ_BYTES
from mqspark.extensions import (
    Arrival,
    ConsumeAttempt,
    ConsumeOutcome,
    SendAttempt,
    SendOutcome,
)
from mqspark.message import MessageExt, decode_properties
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler
from mqspark.protocol.extending import Answer, Extensions, UserOf
from mqspark.protocol.headers.client_headers import (
    PopMessageRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices
from mqspark.record.record import decode_pull
from mqspark.record.recordlayout import record_size
from mqspark.store.store import MessageStore

READ_MESSAGES = 32
"""Limit of one read by an observer, beside READ_BYTES."""
_ATTEMPT_BYTES = 500
"""The size of an attempt and of its answer's receiver, without texts of the peer."""
_SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class BrokerHooks:
    """``user_of``: the name of the user of a connection's present request."""

    def __init__(
        self, extensions: Extensions, store: MessageStore, broker_name: str, user_of: UserOf
    ) -> None:
        self._extensions = extensions
        self._store = store
        self._broker_name = broker_name
        self._user_of = user_of

    def around(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers with all hooks around them, RPC hooks outermost."""
        hooked = dict(handlers)
        if self._extensions.sends:
            hooked.update({code: self._around_send(handlers[code]) for code in _SENDS})
        if self._extensions.consumes:
            hooked.update({code: self._around_pull(handlers[code]) for code in _PULLS})
            code = RequestCode.POP_MESSAGE
            hooked[code] = self._around_pop(handlers[code])
        return self._extensions.around(hooked, self._user_of)

    # --- sends ---

    def _around_send(self, handler: Handler) -> Handler:
        extensions = self._extensions

        def hooked(session: Session, command: Command) -> bytes | Slices | None:
            header: SendMessageRequestHeader | SendMessageRequestHeaderV2
            if command.code == RequestCode.SEND_MESSAGE:
                header = command.header(SendMessageRequestHeader)
            else:
                header = command.header(SendMessageRequestHeaderV2)
            properties = header.properties or ""
            attempt = SendAttempt(
                header.topic,
                header.queue_id,
                header.producer_group,
                MappingProxyType(decode_properties(properties)),
                len(command.body),
                header.batch is True,
                header.born_timestamp,
                session.peer,
                self._user_of(session),
            )
            for each in extensions.sends:
                each.ask_leniently(each.hooks.before_send, attempt, command.body)
            size_bytes = _ATTEMPT_BYTES + text_bytes(header.topic) + 4 * text_bytes(properties)
            extensions.expect(session, command, partial(self._sent, attempt), size_bytes)
            return handler(session, command)

        return hooked

    def _sent(self, attempt: SendAttempt, answer: Answer) -> None:
        command = answer.command
        fields = command.ext
        outcome = SendOutcome(
            command.code,
            command.remark or "",
            fields.get("msgId", ""),
            int(fields.get("queueId", attempt.queue_id)),
            int(fields.get("queueOffset", -1)),
        )
        for each in self._extensions.sends:
            each.tell(each.hooks.after_send, attempt, outcome)

    # --- deliveries ---

    def _around_pull(self, handler: Handler) -> Handler:
        def hooked(session: Session, command: Command) -> bytes | Slices | None:
            header = command.header(PullMessageRequestHeader)
            self._begin(session, command, header, header.queue_offset, is_pop=False)
            return handler(session, command)

        return hooked

    def _around_pop(self, handler: Handler) -> Handler:
        def hooked(session: Session, command: Command) -> bytes | Slices | None:
            self._begin(session, command, command.header(PopMessageRequestHeader), -1, is_pop=True)
            return handler(session, command)

        return hooked

    def _begin(
        self,
        session: Session,
        command: Command,
        header: PullMessageRequestHeader | PopMessageRequestHeader,
        offset: int,
        *,
        is_pop: bool,
    ) -> None:
        """Raises Refusal."""
        attempt = ConsumeAttempt(
            header.topic,
            header.queue_id,
            header.consumer_group,
            offset,
            header.max_msg_nums,
            is_pop,
            session.peer,
            self._user_of(session),
        )
        extensions = self._extensions
        for each in extensions.consumes:
            each.ask_leniently(each.hooks.before_consume, attempt)
        size_bytes = _ATTEMPT_BYTES + text_bytes(attempt.topic) + text_bytes(attempt.group)
        extensions.expect(session, command, partial(self._delivered, attempt), size_bytes)

    def _delivered(self, attempt: ConsumeAttempt, answer: Answer) -> None:
        command = answer.command
        records = _count_records(answer.body) if command.code == ResponseCode.SUCCESS else 0
        outcome = ConsumeOutcome(command.code, command.remark or "", records, answer.body_bytes)
        for each in self._extensions.consumes:
            each.tell(each.hooks.after_consume, attempt, outcome)

    # --- the store ---

    def arrived(self, arrivals: Sequence[tuple[str, int, int]]) -> None:
        """Queues have grown: (topic, queue id, new max offset) each."""
        observers = self._extensions.observers
        if observers:
            shown = [Arrival(*arrival) for arrival in arrivals]
            for each in observers:
                each.tell(each.hooks.arrived, shown, self._read)

    def _read(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[MessageExt]:
        result = self._store.reads.get(topic, queue_id, offset, max(1, min(count, READ_MESSAGES)), READ_BYTES)
        return decode_pull(b"".join(result.buffers), broker_name=self._broker_name)[0]


def _count_records(body: Sequence[memoryview]) -> int:
    """The number of records in these buffers, which begin with the first one."""
    count = position = 0
    for part in body:
        while position + 4 <= len(part):
            size_bytes = record_size(part, position)
            if size_bytes <= 0:
                return count
            position += size_bytes
            count += 1
        if position < len(part):
            return count
        position -= len(part)
    return count
