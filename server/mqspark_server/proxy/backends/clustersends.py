"""Plain sends of one client to the brokers of a cluster: requests that need no task, since their senders are told the
outcome."""

from __future__ import annotations

from collections.abc import Callable

from mqspark.errors import MQError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from mqspark_server.net.outbound import Outbound
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S, DirectSender, DirectTopic
from mqspark_server.proxy.backends.readytopics import ReadyTopic

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SUCCESS = int(ResponseCode.SUCCESS)


class _AskedSend:
    """A message whose answer is awaited (``outbound.Waiting``)."""

    __slots__ = ("_sender",)

    def __init__(self, sender: DirectSender) -> None:
        self._sender = sender

    def done(self) -> bool:
        return self._sender.is_over

    def set_result(self, answer: Command) -> None:
        sender = self._sender
        if answer.code != _SUCCESS:
            sender.failed(answer.code, answer.remark or "")
            return
        try:
            offset = answer.header(SendMessageResponseHeader).queue_offset
        except MQError as error:
            sender.refused(error)
        else:
            sender.stored(offset)

    def set_exception(self, error: Exception) -> None:
        self._sender.refused(error)


class ClusterSends:
    def __init__(
        self, topic: Callable[[str], ReadyTopic | None], connection: Callable[[str], Outbound | None]
    ) -> None:
        """``connection``: that to a broker, if it is open."""
        self._topic = topic
        self._connection = connection

    def topic(self, name: str) -> DirectTopic | None:
        ready = self._topic(name)
        return None if ready is None else DirectTopic(ready, ready.message_type, ready.queues)

    def send(
        self,
        topic: DirectTopic,
        queue: int,
        born_ms: int,
        properties: str,
        tags: str,
        body: bytes,
        sys_flag: int,
        sender: DirectSender,
    ) -> bool:
        ready: ReadyTopic = topic.where
        broker, queue_id = ready.queue(queue)
        connection = self._connection(broker)
        if connection is None:
            return False
        header = SendMessageRequestHeaderV2.of(
            ready.name, ready.name, queue_id, born_ms, properties, sys_flag=sys_flag
        )
        connection.ask(_AskedSend(sender), _SEND, header, body, timeout_s=ANSWER_TIMEOUT_S)
        return True
