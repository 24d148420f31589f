"""Assignment of queues, and of pull or pop mode, to consumers that leave both to the broker
(QueryAssignmentProcessor, MessageRequestModeManager).

Facts: docs/rocketmq/pop.md#assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mqspark.base.bounded import BoundedMap, Ledger, weigh
from mqspark.base.config import Bound
from mqspark.base.names import sound_only
from mqspark.broker.pop.cluster_routes import KnownRoutes
from mqspark.broker.pop.parked_pops import ANY_QUEUE
from mqspark.broker.state.state import BrokerState
from mqspark.message import LMQ_PREFIX, RETRY_PREFIX, MessageQueue, Queues
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import Queue, decode_body, decode_table, encode_body, to_document
from mqspark.protocol.bodies.client_bodies import (
    MessageQueueAssignment,
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.session import Session

PULL, POP = "PULL", "POP"


def assign(
    strategy: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue] | None:
    """The client's share; both lists are sorted. None for a strategy that brokers do not implement."""
    if strategy not in ("AVG", "AVG_BY_CIRCLE"):
        return None
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    if strategy == "AVG_BY_CIRCLE":
        return list(queues[index :: len(clients)])
    share, more = divmod(len(queues), len(clients))
    start = index * share + min(index, more)
    end = start + share + (1 if index < more else 0)
    return list(queues[start:end])


def assign_for_pop(
    strategy: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str], share: int
) -> list[MessageQueue] | None:
    """With few neighbours to share with, or none, every client gets one entry per broker that stands for all its
    queues. Otherwise the queues of this client and of the next ``share`` clients. None as in ``assign``."""
    if share <= 0 or share >= len(clients) - 1:
        if isinstance(queues, Queues):
            return [MessageQueue(queues.topic, name, ANY_QUEUE) for name, _ in queues.spans]
        return [queue._replace(queue_id=ANY_QUEUE) for queue in queues]
    if client_id not in clients:
        return assign(strategy, client_id, queues, clients)
    index = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    result: list[MessageQueue] = []
    for number in range(share + 1):
        part = assign(strategy, clients[(index + number) % len(clients)], queues, clients)
        if part is None:
            return None
        result += part
    return result


class RequestModes:
    """The modes that operators set, and their file ``messageRequestMode.json``. A Table of ``SavedTable``."""

    def __init__(self, max_bytes: Bound) -> None:
        self.ledger = Ledger("requestModes", max_bytes)
        self._modes: BoundedMap[str, dict[str, SetMessageRequestModeRequestBody]] = self.ledger.map(0, weigh)
        self.generation = 0

    def find(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        return self._modes.get(topic, {}).get(group)

    def put(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Raises TableFull."""
        topic, group = mode.topic or "", mode.consumer_group or ""
        self._modes[topic] = {**self._modes.get(topic, {}), group: mode}
        self.generation += 1

    def wrapper(self) -> MessageRequestModeSerializeWrapper:
        return MessageRequestModeSerializeWrapper(message_request_mode_map=dict(self._modes))

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Returns the encoder of the file. The inner tables are replaced, never modified."""
        wrapper = self.wrapper()
        return lambda: [fastjson.dumps_pretty(to_document(wrapper)).encode()]

    def follow(self, master: MessageRequestModeSerializeWrapper) -> None:
        """Become a copy of a master's table."""
        before = self._modes.copy()
        self._replace(master)
        if self._modes != before:
            self.generation += 1

    def load(self, data: bytes) -> None:
        """Raises ProtocolError."""
        self._replace(decode_table(MessageRequestModeSerializeWrapper, data))

    def _replace(self, wrapper: MessageRequestModeSerializeWrapper) -> None:
        modes = sound_only("message request modes", wrapper.message_request_mode_map)
        self._modes.refill(
            {topic: sound_only("message request modes of a topic", groups) for topic, groups in modes.items()}
        )


class AssignmentProcessor:
    def __init__(
        self,
        state: BrokerState,
        modes: RequestModes,
        routes: KnownRoutes,
        changed: Callable[[Session, Command], None],
    ) -> None:
        """``changed`` answers a change once it is saved."""
        self._state = state
        self._modes = modes
        self._routes = routes
        self._changed = changed
        self.handlers: dict[int, Handler] = {
            RequestCode.QUERY_ASSIGNMENT: self.query_assignment,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all_modes,
        }

    def query_assignment(self, session: Session, command: Command) -> None:
        question = decode_body(QueryAssignmentRequestBody, command.body)
        if not question.topic or not question.consumer_group:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "a topic and a consumerGroup are needed")
        if command.is_oneway:
            return

        began_ms = self._state.clock.monotonic_ms()

        def answer() -> bytes:
            frame = ok(command, body=self._assignments(question))
            took_ms = self._state.clock.monotonic_ms() - began_ms
            self._state.stats.rpc.record(command.code, ResponseCode.SUCCESS, took_ms)
            return frame

        self._routes.answer(session, question.topic, answer, len(command.body))

    def _assignments(self, question: QueryAssignmentRequestBody) -> bytes:
        """The response body. Without a list, the client keeps its present assignment."""
        config = self._state.config
        topic, group = question.topic or "", question.consumer_group or ""
        chosen = self._modes.find(topic, group)
        if chosen is not None:
            mode, share = chosen.mode, chosen.pop_share_queue_num
        else:
            mode = PULL if topic.startswith(RETRY_PREFIX) else config.default_message_request_mode
            share = config.default_pop_share_queue_num
        queues = self._share(question, topic, group, mode, share)
        if queues is None:
            return encode_body(QueryAssignmentResponseBody())
        return _encoded(dict.fromkeys(queues), mode)

    def _share(
        self, question: QueryAssignmentRequestBody, topic: str, group: str, mode: str, share: int
    ) -> Sequence[MessageQueue] | None:
        state = self._state
        if topic.startswith(LMQ_PREFIX):
            queues: Sequence[MessageQueue] | None = [MessageQueue(topic, state.config.broker_name, 0)]
        else:
            found = self._routes.queues(topic)
            queues = found and Queues(topic, sorted(found.spans, key=lambda span: _java_order(span[0])))
        if queues is None or question.message_model == "BROADCASTING":
            return queues
        if not state.config.server_load_balancer_enable:
            return queues
        members = state.clients.consumer(group)
        if members is None or not members.members:
            return None
        clients = sorted(members.members, key=_java_order)
        strategy, client_id = question.strategy_name or "", question.client_id or ""
        if mode == POP:
            return assign_for_pop(strategy, client_id, queues, clients, share)
        return assign(strategy, client_id, queues, clients)

    def set_mode(self, session: Session, command: Command) -> None:
        state = self._state
        mode = decode_body(SetMessageRequestModeRequestBody, command.body)
        if not mode.topic or not mode.consumer_group or mode.mode not in (PULL, POP):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, "a topic, a consumerGroup and a mode, PULL or POP, are needed"
            )
        if mode.topic.startswith(RETRY_PREFIX):
            raise Refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if state.topics.get(mode.topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
        if state.subscriptions.find(mode.consumer_group, session) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        self._modes.put(mode)
        self._changed(session, command)

    def all_modes(self, session: Session, command: Command) -> bytes:
        return ok(command, body=encode_body(self._modes.wrapper()))


def _java_order(text: str) -> bytes:
    """The sort key of Java's string order: UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def _encoded(queues: Iterable[MessageQueue], mode: str) -> bytes:
    """A QueryAssignmentResponseBody. A topic can have very many queues, and the queues of one broker differ only
    in their ids."""
    ends: dict[str, tuple[bytes, bytes]] = {}
    parts: list[bytes] = []
    for topic, broker_name, queue_id in queues:
        end = ends.get(broker_name)
        if end is None:
            queue = MessageQueueAssignment(message_queue=Queue(topic, broker_name, 0), mode=mode)
            head, number, tail = encode_body(queue).rpartition(b'"queueId":0')
            end = ends[broker_name] = head + number[:-1], tail
        parts.append(b"%b%d%b" % (end[0], queue_id, end[1]))
    head, brackets, tail = encode_body(QueryAssignmentResponseBody([])).partition(b"[]")
    return b"".join((head, brackets[:1], b",".join(parts), brackets[1:], tail))
