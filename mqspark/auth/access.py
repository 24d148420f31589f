"""The table of all requests: what each one needs, judged on what it really touches.

A request is allowed only if its code has a row here and the user's policies allow every need of the row. A need reads
its resource from the same place as the handler: a field, the body, or the stored message at an offset or id.
Super users need no policy. Names are mapped first:

- ``%RETRY%group`` and ``%DLQ%group`` belong to the group: reading them, and writing retries, needs Sub on the group.
- Dead letters are written by brokers alone: a message for ``%DLQ%group`` needs what their own topics need. Clients send
  a message back, or a retry that has had all its attempts.
- ``%RETRY%group+topic`` and ``%RETRY%group_topic`` of POP belong to the group, too.
- System topics, and topics that only the broker writes to, belong to the cluster (Get or Update).

``docs/security.md`` prints this table. Facts: docs/rocketmq/protocol.md#policies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mqspark.auth.policies import ANY_NAME, Access, Action, Kind
from mqspark.errors import InvalidMessage
from mqspark.message import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    DLQ_ORIGIN_TOPIC,
    DLQ_PREFIX,
    MULTI_DISPATCH,
    REAL_TOPIC,
    RETRY_PREFIX,
    RETRY_TOPIC,
    SELF_TEST_TOPIC,
    TRACE_TOPIC,
    awaited_topic,
    decode_offset_id,
    is_broker_topic,
    is_system_topic,
)
from mqspark.propertystring import ITEM_END, NAME_END
from mqspark.protocol.bodies.admin_bodies import QueuesOfTopics
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import (
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
)
from mqspark.protocol.bodies.lite_bodies import LiteSubscriptionCtlRequestBody
from mqspark.protocol.bodies.topic_bodies import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.request_headers import REQUEST_HEADERS
from mqspark.protocol.receipts import real_topic

__all__ = ["TABLE", "Facts", "Need", "NoFacts", "AskedFor", "Row", "TouchedMessage", "accesses"]

MAX_BODY_OBJECTS = 16_385
"""Limit of groups, subscriptions or queues in one body. A body with more is refused before it is decoded."""
_ORIGIN = re.compile(f"(?:{RETRY_TOPIC}|{DLQ_ORIGIN_TOPIC}){NAME_END}([^{ITEM_END}\0]*)".encode())
_MULTI_DISPATCH = re.compile(f"{MULTI_DISPATCH}{NAME_END}([^{ITEM_END}\0]*)".encode())

_OF_LETTERS = "for a retry Pub or Sub on its origin, too; for a dead letter Update on the cluster instead"
_STORED_TOPICS = "the topic of the stored message, and the one it waits for"

PUB, SUB, CREATE, UPDATE = Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE
DELETE, GET, LIST = Action.DELETE, Action.GET, Action.LIST

_READS_OR_WRITES = frozenset({SUB, PUB})
_WRITES = frozenset({PUB, CREATE, UPDATE, DELETE})
_CLIENTS_OWN = frozenset({TRACE_TOPIC, BENCHMARK_TOPIC, SELF_TEST_TOPIC})
"""System topics that clients use directly. They need policies like ordinary topics."""


class TouchedMessage(NamedTuple):
    topic: str
    properties: dict[str, str]


class Facts(Protocol):
    """What the table needs to know about the server that it guards."""

    @property
    def cluster(self) -> str:
        """The name of the server's cluster; ``*`` when it serves several."""
        ...

    @property
    def addresses(self) -> Collection[str]:
        """``host:port``, in lower case: the addresses that the server gives to clients."""
        ...

    @property
    def multi_dispatch(self) -> bool:
        """Whether a message is dispatched to the queues that its property INNER_MULTI_DISPATCH names."""
        ...

    def stored(self, position: int) -> TouchedMessage | None:
        """The message at a position of the log; None if there is none."""
        ...

    def is_group(self, name: str) -> bool: ...

    def cluster_of(self, broker_name: str) -> str | None:
        """The cluster in which a name server has registered this broker."""
        ...


class NoFacts:
    """The facts of a server without messages and groups."""

    cluster = ANY_NAME
    addresses: Collection[str] = ()
    multi_dispatch = False

    def stored(self, position: int) -> TouchedMessage | None:
        return None

    def is_group(self, name: str) -> bool:
        return False

    def cluster_of(self, broker_name: str) -> str | None:
        return None


@dataclass(slots=True)
class AskedFor:
    """A command, and the facts needed to find its resources."""

    command: Command
    facts: Facts

    @property
    def header(self) -> Any:
        """The typed header that the handler will see. Raises the errors of ``Command.header``."""
        return self.command.header(REQUEST_HEADERS[self.command.code])

    def body(self, body_type: type[Any]) -> Any:
        """The decoded body. Raises ProtocolError, IllegalName, or Refusal for a body of too many objects."""
        body = bytes(self.command.body)
        if body.count(b"{") > MAX_BODY_OBJECTS:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the body has more than {MAX_BODY_OBJECTS} objects, which is the limit",
            )
        return decode_body(body_type, body)

    def topic(
        self, name: str | None, actions: frozenset[Action], group: str | None = None
    ) -> Iterator[Access]:
        """The accesses that a topic's name stands for. ``group``: the group named in the same request."""
        if not name:
            return
        if name.startswith(RETRY_PREFIX):
            yield from self._retry(name.removeprefix(RETRY_PREFIX), actions, group)
        elif name.startswith(DLQ_PREFIX):
            yield Access(Kind.GROUP, name.removeprefix(DLQ_PREFIX), _of_group(actions))
        elif name not in _CLIENTS_OWN and (is_broker_topic(name) or is_system_topic(name)):
            yield self.cluster({UPDATE} if actions <= _WRITES else {GET})
        else:
            yield Access(Kind.TOPIC, name, actions)

    def _retry(self, rest: str, actions: frozenset[Action], group: str | None) -> Iterator[Access]:
        owner, plus, _ = rest.partition("+")
        if not plus and group and rest.startswith(f"{group}_") and not self.facts.is_group(rest):
            owner = group
            yield Access(Kind.TOPIC, rest.removeprefix(f"{group}_"), actions)
        yield Access(Kind.GROUP, owner, _of_group(actions))

    def group(self, name: str | None, actions: frozenset[Action]) -> Iterator[Access]:
        if name:
            yield Access(Kind.GROUP, name.removeprefix(RETRY_PREFIX), actions)

    def cluster(self, actions: Iterable[Action], name: str | None = None) -> Access:
        return Access(Kind.CLUSTER, name or self.facts.cluster, frozenset(actions))


def accesses(facts: Facts, kind: Kind, name: str, actions: frozenset[Action]) -> list[Access]:
    """The accesses that ``actions`` on a topic, a group or the cluster stand for, after mapping its name."""
    request = AskedFor(Command(0), facts)
    if kind is Kind.TOPIC:
        return list(request.topic(name, actions))
    if kind is Kind.GROUP:
        return list(request.group(name, actions))
    return [request.cluster(actions)]


def _of_group(actions: frozenset[Action]) -> frozenset[Action]:
    return frozenset(SUB if action is PUB else action for action in actions)


Find = Callable[[AskedFor, frozenset[Action]], Iterator[Access]]


class Need(NamedTuple):
    """A requirement: one of ``actions`` on every resource that ``find`` yields."""

    what: str
    actions: frozenset[Action]
    find: Find

    @property
    def text(self) -> str:
        return f"{self.what}: {' or '.join(sorted(self.actions))}"


class Row(NamedTuple):
    """The row of one request code. All ``needs`` must be met. ``super_only``: no policy can grant the request."""

    needs: tuple[Need, ...] = ()
    super_only: bool = False
    to_client: bool = False
    """Whether servers send this request to clients. Servers refuse to receive it."""


def _row(*needs: Need) -> Row:
    return Row(needs)


def _topic(*actions: Action, field: str = "topic", group: str = "consumer_group") -> Need:
    def find(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
        header = request.header
        return request.topic(getattr(header, field), wanted, getattr(header, group, None))

    return Need("the topic", frozenset(actions), find)


def _group(*actions: Action, field: str = "consumer_group", what: str = "the group") -> Need:
    def find(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
        return request.group(getattr(request.header, field), wanted)

    return Need(what, frozenset(actions), find)


def _cluster(*actions: Action) -> Need:
    def find(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
        yield request.cluster(wanted)

    return Need("the cluster", frozenset(actions), find)


def _brokers_cluster(*actions: Action, field: str | None = "cluster_name") -> Need:
    """The cluster that the request names, and the one in which the named broker is registered."""

    def find(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
        header = request.header
        known = request.facts.cluster_of(header.broker_name or "")
        claimed = (getattr(header, field) if field else None) or known or ANY_NAME
        yield request.cluster(wanted, claimed)
        if known and known != claimed:
            yield request.cluster(wanted, known)

    return Need("the broker's cluster, that of the header and that of the route", frozenset(actions), find)


def _send_topics(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    yield from _reply_topic(request, wanted)
    if request.facts.multi_dispatch:
        name = MULTI_DISPATCH.encode()
        for text in _sent_texts(request):
            if name in bytes(text):
                for found in _MULTI_DISPATCH.finditer(text):
                    for queue in found[1].decode("utf-8", "replace").split(","):
                        yield from _written(request, queue, wanted)


def _reply_topic(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    """Replies enter no light queues."""
    topic = request.header.topic
    yield from _written(request, topic, wanted)
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        # Whoever may consume for the group writes there, and others believe from where a message says to come.
        for text in _sent_texts(request):
            for origin in _ORIGIN.finditer(text):
                yield from request.topic(origin[1].decode("utf-8", "replace"), _READS_OR_WRITES)


def _sent_texts(request: AskedFor) -> tuple[bytes, bytes | memoryview]:
    """Where the properties of what is sent are, those of a batch in its body."""
    return (request.header.properties or "").encode(), request.command.body


def _written(request: AskedFor, topic: str, wanted: frozenset[Action]) -> Iterator[Access]:
    if topic.startswith(DLQ_PREFIX):
        yield request.cluster({UPDATE})
    else:
        yield from request.topic(topic, wanted)


def _half_at_offset(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    yield from _transaction_topic(request, request.header.commit_log_offset, wanted)


def _half_of_id(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    yield from _transaction_topic(request, _position(request.header.msg_id), wanted)


def _transaction_topic(request: AskedFor, position: int, wanted: frozenset[Action]) -> Iterator[Access]:
    """The topic that the half message at ``position`` is for."""
    stored = request.facts.stored(position)
    if stored is not None:
        yield from request.topic(stored.properties.get(REAL_TOPIC) or stored.topic, wanted)


def _position(message_id: str | None) -> int:
    """The log position in an offset id; -1, where no message is, for any other text."""
    try:
        return decode_offset_id(message_id or "")[2]
    except InvalidMessage:
        return -1


def _stored_at(find: Callable[[Any], int]) -> Find:
    def stored(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
        header = request.header
        message = request.facts.stored(find(header))
        if message is not None:
            group = getattr(header, "group", None) or getattr(header, "consumer_group", None)
            for topic in dict.fromkeys((message.topic, awaited_topic(*message))):
                yield from request.topic(topic, wanted, group)

    return stored


def _heartbeat(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    for consumer in request.body(HeartbeatData).consumer_data_set or ():
        yield from request.group(consumer.group_name, wanted)
        for subscription in consumer.subscription_data_set or ():
            yield from request.topic(subscription.topic, wanted, consumer.group_name)


def _lite_subscriptions(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    for entry in request.body(LiteSubscriptionCtlRequestBody).lite_subscription_set or ():
        yield from request.group(entry.group, wanted)
        yield from request.topic(entry.topic, wanted, entry.group)


def _checked_client(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    body = request.body(CheckClientRequestBody)
    yield from request.group(body.group, wanted)
    if body.subscription_data is not None:
        yield from request.topic(body.subscription_data.topic, wanted, body.group)


def _locked_queues(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    body = request.body(LockBatchRequestBody)
    yield from request.group(body.consumer_group, wanted)
    for topic in {queue.topic for queue in body.mq_set}:
        yield from request.topic(topic, wanted, body.consumer_group)


def _batch_ack_entries(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    body = request.body(BatchAckMessageRequestBody) if request.command.body else None
    pairs = {
        (real_topic(entry.topic, entry.consumer_group, entry.retry), entry.consumer_group)
        for entry in (body.acks if body is not None else None) or ()
    }
    for topic, group in pairs:
        yield from request.group(group, wanted)
        yield from request.topic(topic, wanted, group)


def _assignment(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    body = request.body(QueryAssignmentRequestBody)
    yield from request.topic(body.topic, wanted, body.consumer_group)
    yield from request.group(body.consumer_group, wanted)


def _mode_group(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    body = request.body(SetMessageRequestModeRequestBody)
    yield from request.group(body.consumer_group, wanted)


def _topics_of_body(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    for config in request.body(CreateTopicListRequestBody).topic_config_list:
        yield from request.topic(config.topic_name, wanted)


def _group_of_body(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    yield from request.group(request.body(SubscriptionGroupConfig).group_name, wanted)


def _groups_of_body(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    for config in request.body(SubscriptionGroupList).group_config_list:
        yield from request.group(config.group_name, wanted)


def _asked_topics(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    header = request.header
    yield from request.topic(header.topic, wanted)
    if header.mqspark_queues:
        for name in {each.topic for each in request.body(QueuesOfTopics).topics}:
            yield from request.topic(name, wanted)


def _listed_topics(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    header = request.header
    for name in dict.fromkeys((header.topic, *(header.topic_list or "").split(";"))):
        yield from request.topic(name, wanted, header.consumer_group)


def _filtered_groups(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    header = request.header
    for name in (header.compare_group, *(header.filter_groups or "").split(",")):
        yield from request.group(name, wanted)


def _route(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    topic = request.header.topic
    if topic != DEFAULT_TOPIC:  # the template of new topics, which every producer asks for
        yield from request.topic(topic, wanted)


def _need(what: str, find: Find, *actions: Action) -> Need:
    return Need(what, frozenset(actions), find)


_OFFSETS = _row(_topic(GET, SUB))
_OFFSETS_OF_MANY = _row(_need("the topic, or each topic of the body", _asked_topics, GET, SUB))
_SEND = _row(_need(f"the topic, and each queue of INNER_MULTI_DISPATCH; {_OF_LETTERS}", _send_topics, PUB))
_REPLY = _row(_need(f"the topic; {_OF_LETTERS}", _reply_topic, PUB))
_POP = _row(_topic(SUB), _group(SUB))
_PULL = _POP
_LOCK = _row(_need("the group of the body, and each topic", _locked_queues, SUB))
_READ_CLUSTER = _row(_cluster(GET))
_LIST_CLUSTER = _row(_cluster(GET, LIST))
_CHANGE_CLUSTER = _row(_cluster(UPDATE))
_SUPER = Row(super_only=True)
_CLIENT = Row(to_client=True)
_BROKER = _row(_brokers_cluster(UPDATE))
_SEES_BROKER = _row(_brokers_cluster(GET))

C = RequestCode

TABLE: dict[int, Row] = {
    # --- producers
    C.SEND_MESSAGE: _SEND,
    C.SEND_MESSAGE_V2: _SEND,
    C.SEND_BATCH_MESSAGE: _SEND,
    C.SEND_REPLY_MESSAGE: _REPLY,
    C.SEND_REPLY_MESSAGE_V2: _REPLY,
    C.RECALL_MESSAGE: _row(_topic(PUB)),
    C.END_TRANSACTION: _row(_need("the topic of the half message", _half_at_offset, PUB)),
    C.RESUME_CHECK_HALF_MESSAGE: _row(_need("the topic of the half message", _half_of_id, UPDATE)),
    # --- consumers
    C.PULL_MESSAGE: _PULL,
    C.LITE_PULL_MESSAGE: _PULL,
    C.POP_MESSAGE: _POP,
    C.PEEK_MESSAGE: _POP,
    C.NOTIFICATION: _POP,
    C.POLLING_INFO: _row(_topic(GET, SUB), _group(GET, SUB)),
    C.ACK_MESSAGE: _POP,
    C.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    C.BATCH_ACK_MESSAGE: _row(_need("each entry's topic and group", _batch_ack_entries, SUB)),
    C.POP_ROLLBACK: _CHANGE_CLUSTER,
    C.CONSUMER_SEND_MSG_BACK: _row(
        _group(SUB, field="group"),
        _need(_STORED_TOPICS, _stored_at(lambda h: h.offset), SUB),
    ),
    C.QUERY_CONSUMER_OFFSET: _row(_topic(GET, SUB), _group(GET, SUB)),
    C.UPDATE_CONSUMER_OFFSET: _row(_topic(SUB, UPDATE), _group(SUB, UPDATE)),
    C.GET_CONSUMER_LIST_BY_GROUP: _row(_group(GET, SUB)),
    C.LOCK_BATCH_MQ: _LOCK,
    C.UNLOCK_BATCH_MQ: _LOCK,
    C.HEART_BEAT: _row(_need("each consumer group of the body, and its topics", _heartbeat, SUB)),
    C.UNREGISTER_CLIENT: _row(_group(SUB)),
    C.CHECK_CLIENT_CONFIG: _row(_need("the group and the topic of the body", _checked_client, SUB)),
    C.QUERY_ASSIGNMENT: _row(_need("the topic and the group of the body", _assignment, SUB)),
    C.GET_CLIENT_CONFIG: _CLIENT,
    # --- lookups
    C.QUERY_BROKER_OFFSET: _READ_CLUSTER,
    C.SEARCH_OFFSET_BY_TIMESTAMP: _OFFSETS,
    C.GET_MAX_OFFSET: _OFFSETS_OF_MANY,
    C.GET_MIN_OFFSET: _OFFSETS_OF_MANY,
    C.GET_EARLIEST_MSG_STORETIME: _OFFSETS,
    C.QUERY_MESSAGE: _row(_topic(GET, SUB)),
    C.VIEW_MESSAGE_BY_ID: _row(
        _need(
            _STORED_TOPICS,
            _stored_at(lambda h: h.offset),
            GET,
            SUB,
        )
    ),
    C.QUERY_CONSUME_QUEUE: _row(_topic(GET), _group(GET)),
    # --- topics
    C.UPDATE_AND_CREATE_TOPIC: _row(_topic(CREATE)),
    C.UPDATE_AND_CREATE_TOPIC_LIST: _row(_need("each topic of the body", _topics_of_body, CREATE)),
    C.UPDATE_AND_CREATE_STATIC_TOPIC: _row(_cluster(UPDATE)),
    C.DELETE_TOPIC_IN_BROKER: _row(_topic(DELETE)),
    C.GET_TOPIC_CONFIG: _row(_topic(GET)),
    C.GET_TOPIC_STATS_INFO: _row(_topic(GET)),
    C.QUERY_TOPIC_CONSUME_BY_WHO: _row(_topic(GET)),
    C.QUERY_CONSUME_TIME_SPAN: _row(_topic(GET), _group(GET, field="group")),
    C.GET_ALL_TOPIC_CONFIG: _LIST_CLUSTER,
    C.GET_TOPIC_CONFIG_LIST: _LIST_CLUSTER,
    C.GET_TOPIC_NAME_LIST: _LIST_CLUSTER,
    C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _LIST_CLUSTER,
    C.CLEAN_UNUSED_TOPIC: _CHANGE_CLUSTER,
    # --- groups
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _row(_need("the group of the body", _group_of_body, CREATE)),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _row(
        _need("each group of the body", _groups_of_body, CREATE)
    ),
    C.DELETE_SUBSCRIPTIONGROUP: _row(_group(DELETE, field="group_name")),
    C.GET_SUBSCRIPTIONGROUP_CONFIG: _row(_group(GET, field="group")),
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _LIST_CLUSTER,
    C.GET_CONSUMER_CONNECTION_LIST: _row(_group(GET)),
    C.GET_PRODUCER_CONNECTION_LIST: _READ_CLUSTER,
    C.GET_ALL_PRODUCER_INFO: _LIST_CLUSTER,
    C.GET_CONSUME_STATS: _row(_group(GET), _need("each topic that is named", _listed_topics, GET)),
    C.GET_BROKER_CONSUME_STATS: _READ_CLUSTER,
    C.GET_CONSUMER_RUNNING_INFO: _row(_group(GET)),
    C.CONSUME_MESSAGE_DIRECTLY: _row(
        _group(SUB),
        _topic(SUB),
        _need(
            _STORED_TOPICS,
            _stored_at(lambda h: _position(h.msg_id)),
            SUB,
        ),
    ),
    C.INVOKE_BROKER_TO_RESET_OFFSET: _row(_topic(UPDATE, group="group"), _group(UPDATE, field="group")),
    C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _row(_topic(GET, group="group"), _group(GET, field="group")),
    C.CLONE_GROUP_OFFSET: _row(
        _group(GET, UPDATE, field="src_group", what="the source group"),
        _group(UPDATE, field="dest_group", what="the destination group"),
        _topic(UPDATE),
    ),
    C.QUERY_CORRECTION_OFFSET: _row(_topic(GET), _need("each group that is named", _filtered_groups, GET)),
    C.QUERY_TOPICS_BY_CONSUMER: _row(_group(GET, field="group")),
    C.QUERY_SUBSCRIPTION_BY_CONSUMER: _row(_group(GET, field="group"), _topic(GET)),
    C.UPDATE_AND_GET_GROUP_FORBIDDEN: _row(_group(UPDATE, field="group"), _topic(UPDATE)),
    C.SET_MESSAGE_REQUEST_MODE: _row(_need("the group of the body", _mode_group, UPDATE)),
    C.GET_ALL_MESSAGE_REQUEST_MODE: _LIST_CLUSTER,
    C.GET_ALL_CONSUMER_OFFSET: _LIST_CLUSTER,
    C.WHO_CONSUME_THE_MESSAGE: _READ_CLUSTER,
    C.SUSPEND_CONSUMER: _CHANGE_CLUSTER,
    C.RESUME_CONSUMER: _CHANGE_CLUSTER,
    C.RESET_CONSUMER_OFFSET_IN_BROKER: _CHANGE_CLUSTER,
    C.ADJUST_CONSUMER_THREAD_POOL: _CHANGE_CLUSTER,
    C.REGISTER_FILTER_SERVER: _CHANGE_CLUSTER,
    C.REGISTER_MESSAGE_FILTER_CLASS: _CHANGE_CLUSTER,
    # --- the broker itself
    C.UPDATE_BROKER_CONFIG: _CHANGE_CLUSTER,
    C.GET_BROKER_CONFIG: _READ_CLUSTER,
    C.GET_BROKER_RUNTIME_INFO: _READ_CLUSTER,
    C.TRIGGER_DELETE_FILES: _CHANGE_CLUSTER,
    C.DELETE_EXPIRED_COMMITLOG: _CHANGE_CLUSTER,
    C.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE_CLUSTER,
    C.VIEW_BROKER_STATS_DATA: _READ_CLUSTER,
    C.GET_ALL_DELAY_OFFSET: _READ_CLUSTER,
    C.GET_TIMER_CHECK_POINT: _READ_CLUSTER,
    C.GET_TIMER_METRICS: _READ_CLUSTER,
    C.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _READ_CLUSTER,
    C.EXPORT_ROCKSDB_CONFIG_TO_JSON: _READ_CLUSTER,
    C.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER,
    C.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER,
    C.GET_COLD_DATA_FLOW_CTR_INFO: _READ_CLUSTER,
    C.SET_COMMITLOG_READ_MODE: _CHANGE_CLUSTER,
    C.SWITCH_TIMER_ENGINE: _CHANGE_CLUSTER,
    C.ADD_BROKER: _CHANGE_CLUSTER,
    C.REMOVE_BROKER: _CHANGE_CLUSTER,
    C.POP_LITE_MESSAGE: _POP,
    C.LITE_SUBSCRIPTION_CTL: _row(_need("each group and topic of the body", _lite_subscriptions, SUB)),
    C.ACK_LITE_MESSAGE: _CHANGE_CLUSTER,
    C.GET_BROKER_LITE_INFO: _READ_CLUSTER,
    C.GET_PARENT_TOPIC_INFO: _READ_CLUSTER,
    C.GET_LITE_TOPIC_INFO: _READ_CLUSTER,
    C.GET_LITE_CLIENT_INFO: _READ_CLUSTER,
    C.GET_LITE_GROUP_INFO: _READ_CLUSTER,
    C.TRIGGER_LITE_DISPATCH: _CHANGE_CLUSTER,
    # --- brokers among themselves
    C.NOTIFY_MIN_BROKER_ID_CHANGE: _CHANGE_CLUSTER,
    C.EXCHANGE_BROKER_HA_INFO: _CHANGE_CLUSTER,
    C.GET_BROKER_HA_STATUS: _READ_CLUSTER,
    C.RESET_MASTER_FLUSH_OFFSET: _CHANGE_CLUSTER,
    C.GET_BROKER_EPOCH_CACHE: _READ_CLUSTER,
    C.NOTIFY_BROKER_ROLE_CHANGED: _CHANGE_CLUSTER,
    # --- name server
    C.GET_ROUTEINFO_BY_TOPIC: _row(
        _need(f"the topic; {DEFAULT_TOPIC} is everybody's", _route, PUB, SUB, GET)
    ),
    C.REGISTER_BROKER: _BROKER,
    C.UNREGISTER_BROKER: _BROKER,
    C.BROKER_HEARTBEAT: _BROKER,
    C.QUERY_DATA_VERSION: _BROKER,
    C.GET_BROKER_MEMBER_GROUP: _SEES_BROKER,
    C.GET_BROKER_CLUSTER_INFO: _LIST_CLUSTER,
    C.WIPE_WRITE_PERM_OF_BROKER: _row(_brokers_cluster(UPDATE, field=None)),
    C.ADD_WRITE_PERM_OF_BROKER: _row(_brokers_cluster(UPDATE, field=None)),
    C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _LIST_CLUSTER,
    C.GET_TOPICS_BY_CLUSTER: _LIST_CLUSTER,
    C.GET_SYSTEM_TOPIC_LIST_FROM_NS: _LIST_CLUSTER,
    C.GET_UNIT_TOPIC_LIST: _LIST_CLUSTER,
    C.GET_HAS_UNIT_SUB_TOPIC_LIST: _LIST_CLUSTER,
    C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _LIST_CLUSTER,
    C.DELETE_TOPIC_IN_NAMESRV: _row(_topic(DELETE)),
    C.REGISTER_TOPIC_IN_NAMESRV: _row(_topic(CREATE)),
    C.PUT_KV_CONFIG: _CHANGE_CLUSTER,
    C.GET_KV_CONFIG: _READ_CLUSTER,
    C.DELETE_KV_CONFIG: _CHANGE_CLUSTER,
    C.GET_KVLIST_BY_NAMESPACE: _READ_CLUSTER,
    C.UPDATE_NAMESRV_CONFIG: _CHANGE_CLUSTER,
    C.GET_NAMESRV_CONFIG: _READ_CLUSTER,
    # --- controller
    C.CONTROLLER_ALTER_SYNC_STATE_SET: _CHANGE_CLUSTER,
    C.CONTROLLER_ELECT_MASTER: _CHANGE_CLUSTER,
    C.CONTROLLER_REGISTER_BROKER: _CHANGE_CLUSTER,
    C.CONTROLLER_GET_REPLICA_INFO: _READ_CLUSTER,
    C.CONTROLLER_GET_METADATA_INFO: _READ_CLUSTER,
    C.CONTROLLER_GET_SYNC_STATE_DATA: _READ_CLUSTER,
    C.UPDATE_CONTROLLER_CONFIG: _CHANGE_CLUSTER,
    C.GET_CONTROLLER_CONFIG: _READ_CLUSTER,
    C.CLEAN_BROKER_DATA: _CHANGE_CLUSTER,
    C.CONTROLLER_GET_NEXT_BROKER_ID: _CHANGE_CLUSTER,
    C.CONTROLLER_APPLY_BROKER_ID: _CHANGE_CLUSTER,
    C.BROKER_CLOSE_CHANNEL_REQUEST: _CHANGE_CLUSTER,
    C.CHECK_NOT_ACTIVE_BROKER_REQUEST: _CHANGE_CLUSTER,
    C.GET_BROKER_LIVE_INFO_REQUEST: _READ_CLUSTER,
    C.GET_SYNC_STATE_DATA_REQUEST: _READ_CLUSTER,
    C.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST: _CHANGE_CLUSTER,
    # --- users and policies: a user who may change them can gain every right
    C.AUTH_CREATE_USER: _SUPER,
    C.AUTH_UPDATE_USER: _SUPER,
    C.AUTH_DELETE_USER: _SUPER,
    C.AUTH_GET_USER: _READ_CLUSTER,
    C.AUTH_LIST_USER: _LIST_CLUSTER,
    C.AUTH_CREATE_ACL: _SUPER,
    C.AUTH_UPDATE_ACL: _SUPER,
    C.AUTH_DELETE_ACL: _SUPER,
    C.AUTH_GET_ACL: _READ_CLUSTER,
    C.AUTH_LIST_ACL: _LIST_CLUSTER,
    # --- sent by servers to clients
    C.CHECK_TRANSACTION_STATE: _CLIENT,
    C.NOTIFY_CONSUMER_IDS_CHANGED: _CLIENT,
    C.RESET_CONSUMER_OFFSET_IN_CONSUMER: _CLIENT,
    C.RESET_CONSUMER_CLIENT_OFFSET: _CLIENT,
    C.GET_CONSUMER_STATUS_FROM_CLIENT: _CLIENT,
    C.PUSH_REPLY_MESSAGE_TO_CLIENT: _CLIENT,
    C.NOTIFY_UNSUBSCRIBE_LITE: _CLIENT,
}
"""Every request code. A code without a row is refused."""
