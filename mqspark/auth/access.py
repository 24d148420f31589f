"""The table of all requests: the header of each, what it needs, judged on what it really touches, and how long it may
have waited.

A request is allowed only if its code has a row here and the user's policies allow every need of the row. A need reads
its resource from the same place as the handler: a field, the body, or the stored message at an offset or id.
Super users need no policy. Names are mapped first:

- ``%RETRY%group`` and ``%DLQ%group`` belong to the group: reading them, and writing retries, needs Sub on the group.
- Dead letters are written by brokers alone: a message for ``%DLQ%group`` needs what their own topics need. Clients send
  a message back, or a retry that has had all its attempts.
- ``%RETRY%group+topic`` and ``%RETRY%group_topic`` of POP belong to the group, too.
- System topics, and topics that only the broker writes to, belong to the cluster (Get or Update).

``docs/security.md`` and ``docs/requests.md`` print this table. Facts: docs/rocketmq/protocol.md#policies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from mqspark.auth.policies import ANY_NAME, Access, Action, Kind
from mqspark.base.propertystring import ITEM_END, NAME_END
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
    SCHEMAS_TOPIC,
    SELF_TEST_TOPIC,
    TRACE_TOPIC,
    awaited_topic,
    decode_offset_id,
    is_broker_topic,
    is_system_topic,
)
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
    DeleteSubscriptionGroupListRequestBody,
    DeleteTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers import admin_headers as admin
from mqspark.protocol.headers import client_headers as client
from mqspark.protocol.headers import cluster_headers as cluster
from mqspark.protocol.headers.header import Header
from mqspark.protocol.receipts import real_topic
from mqspark.protocol.schemaoperations import OPERATIONS, Right, topic_of

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
_EVERYBODYS = frozenset({DEFAULT_TOPIC, SCHEMAS_TOPIC})
"""Topics whose routes everybody may ask for: the template of new topics, which every producer asks for, and where the
schema registry is."""
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
        return self.command.header(header_of(self.command.code) or Header)

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
    is_named: bool = True
    """Whether the request names the resources. A refusal does not name those that the server has looked up: who asks
    for one offset after the other would learn the topics of all messages."""

    @property
    def text(self) -> str:
        return f"{self.what}: {' or '.join(sorted(self.actions))}"


class Patience(StrEnum):
    """RocketMQ's queues of requests. A broker refuses what has waited longer than ``waitTimeMillsIn…Queue``."""

    SEND = "send"
    PULL = "pull"
    LITE_PULL = "lite_pull"
    HEARTBEAT = "heartbeat"
    TRANSACTION = "transaction"
    ACK = "ack"
    ADMIN = "admin_broker"


class Row(NamedTuple):
    """The row of one request code. All ``needs`` must be met."""

    code: RequestCode
    header: type[Header] | None
    needs: tuple[Need, ...]
    patience: Patience | None = None
    """None: a broker never refuses it because it has waited."""
    super_only: bool = False
    """Whether no policy can grant the request."""
    to_client: bool = False
    """Whether servers send this request to clients. Servers refuse to receive it."""
    nobody: str = ""
    """Why nobody here serves it."""


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


def _lists(kind: Kind) -> Need:
    """Who may list all topics or groups need not see more of the cluster."""
    every = Access(kind, ANY_NAME, frozenset({LIST}))

    def find(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
        yield request.cluster(wanted)._replace(instead=every)

    return Need(f"`{every.key}`: List, or the cluster", frozenset({GET, LIST}), find)


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


def _doomed_topics_of_body(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    for name in dict.fromkeys(request.body(DeleteTopicListRequestBody).topic_list):
        yield from request.topic(name, wanted)


def _doomed_groups_of_body(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    for name in dict.fromkeys(request.body(DeleteSubscriptionGroupListRequestBody).group_name_list):
        yield from request.group(name, wanted)


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
    if topic not in _EVERYBODYS:
        yield from request.topic(topic, wanted)


def _cloned_topic(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    topic = request.header.topic
    if topic:
        yield from request.topic(topic, wanted)
    else:
        yield Access(Kind.TOPIC, ANY_NAME, wanted)


def _replica_info(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    yield request.cluster(wanted if request.header.known_epoch is None else {UPDATE})


_SCHEMA_ACTIONS = {
    Right.READ: frozenset({GET, SUB, PUB}),
    Right.REGISTER: frozenset({PUB}),
    Right.CHANGE: frozenset({UPDATE}),
    Right.DELETE: frozenset({DELETE}),
}
"""What each right asks for on the topic of the subject."""


def _schemas(request: AskedFor, wanted: frozenset[Action]) -> Iterator[Access]:
    header = request.header
    operation = OPERATIONS.get(header.operation)
    if operation is None or operation.code != request.command.code or operation.right is Right.CHANGE_ALL:
        yield request.cluster({UPDATE})
    elif operation.right in _SCHEMA_ACTIONS:
        yield from request.topic(topic_of(header.schema_subject or ""), _SCHEMA_ACTIONS[operation.right])


def _need(what: str, find: Find, *actions: Action, is_named: bool = True) -> Need:
    return Need(what, frozenset(actions), find, is_named)


def _stored(what: str, find: Find, *actions: Action) -> Need:
    """What a request about a stored message needs."""
    return _need(what, find, *actions, is_named=False)


_OFFSETS = (_topic(GET, SUB),)
_OFFSETS_OF_MANY = (_need("the topic, or each topic of the body", _asked_topics, GET, SUB),)
_SEND = (_need(f"the topic, and each queue of INNER_MULTI_DISPATCH; {_OF_LETTERS}", _send_topics, PUB),)
_REPLY = (_need(f"the topic; {_OF_LETTERS}", _reply_topic, PUB),)
_POP = (_topic(SUB), _group(SUB))
_PULL = _POP
_LOCK = (_need("the group of the body, and each topic", _locked_queues, SUB),)
_READ_CLUSTER = (_cluster(GET),)
_LIST_CLUSTER = (_cluster(GET, LIST),)
_LIST_TOPICS = (_lists(Kind.TOPIC),)
_LIST_GROUPS = (_lists(Kind.GROUP),)
_CHANGE_CLUSTER = (_cluster(UPDATE),)
_BROKER = (_brokers_cluster(UPDATE),)
_SEES_BROKER = (_brokers_cluster(GET),)

_HALF_AT_OFFSET = (_stored("the topic of the half message", _half_at_offset, PUB),)
_HALF_OF_ID = (_stored("the topic of the half message", _half_of_id, UPDATE),)
_SEES_POSITION = (_topic(GET, SUB), _group(GET, SUB))
_ACKS = (_need("each entry's topic and group", _batch_ack_entries, SUB),)
_SENT_BACK = (_group(SUB, field="group"), _stored(_STORED_TOPICS, _stored_at(lambda h: h.offset), SUB))
_MOVES_POSITION = (_topic(SUB, UPDATE), _group(SUB, UPDATE))
_HEARTBEAT = (_need("each consumer group of the body, and its topics", _heartbeat, SUB),)
_CHECKED_CLIENT = (_need("the group and the topic of the body", _checked_client, SUB),)
_ASSIGNMENT = (_need("the topic and the group of the body", _assignment, SUB),)
_STORED = (_stored(_STORED_TOPICS, _stored_at(lambda h: h.offset), GET, SUB),)
_CREATES_TOPICS = (_need("each topic of the body", _topics_of_body, CREATE),)
_TIME_SPAN = (_topic(GET), _group(GET, field="group"))
_CREATES_GROUP = (_need("the group of the body", _group_of_body, CREATE),)
_CREATES_GROUPS = (_need("each group of the body", _groups_of_body, CREATE),)
_DELETES_GROUP = (_group(DELETE, field="group_name"),)
_DELETES_TOPICS = (_need("each topic of the body", _doomed_topics_of_body, DELETE),)
_DELETES_GROUPS = (_need("each group of the body", _doomed_groups_of_body, DELETE),)
_SEES_GROUP = (_group(GET, field="group"),)
_SEES_LITE_GROUP = (
    _group(GET, field="group", what="the group, and Get or Sub on the topic that it is bound to"),
)
_CONSUME_STATS = (_group(GET), _need("each topic that is named", _listed_topics, GET))
_CONSUMED_DIRECTLY = (
    _group(SUB),
    _topic(SUB),
    _stored(_STORED_TOPICS, _stored_at(lambda h: _position(h.msg_id)), SUB),
)
_RESETS_OFFSET = (_topic(UPDATE, group="group"), _group(UPDATE, field="group"))
_CONSUMER_STATUS = (_topic(GET, group="group"), _group(GET, field="group"))
_CLONES_OFFSETS = (
    _group(GET, UPDATE, field="src_group", what="the source group"),
    _group(UPDATE, field="dest_group", what="the destination group"),
    _need("the topic, or `Topic:*` if it names none", _cloned_topic, UPDATE),
)
_CORRECTION = (_topic(GET), _need("each group that is named", _filtered_groups, GET))
_SEES_SUBSCRIPTION = (_group(GET, field="group"), _topic(GET))
_FORBIDS = (_group(UPDATE, field="group"), _topic(UPDATE))
_SETS_MODE = (_need("the group of the body", _mode_group, UPDATE),)
_LITE_SUBSCRIPTIONS = (_need("each group and topic of the body", _lite_subscriptions, SUB),)
_LITE_CLIENT = (_topic(GET, field="parent_topic", group="group"), _group(GET, field="group"))
_ROUTE = (_need(f"the topic; {' and '.join(sorted(_EVERYBODYS))} are everybody's", _route, PUB, SUB, GET),)
_BROKERS_RIGHT = (_brokers_cluster(UPDATE, field=None),)

_REPLICA_INFO = (_need("the cluster; Update with knownEpoch, which may depose a master", _replica_info, GET),)

_READS_SCHEMAS = (
    _need("the topic of the subject; lists and ids show what the caller may read", _schemas, GET, SUB, PUB),
)
_CHANGES_SCHEMAS = (
    _need(
        "the topic of the subject, to register; Update there for its settings, Delete to delete; Update on the cluster"
        " for the settings of all",
        _schemas,
        PUB,
    ),
)

_NUMBER_ALONE = "a number that RocketMQ 5.5 has no handler for, either"
_FILTER_SERVERS = "filter servers, which RocketMQ 5 no longer has"
_AMONG_CONTROLLERS = (
    "among controllers of RocketMQ that replicate by JRaft; controllers here share their state in etcd"
)
_OF_PROXIES = (
    "brokers send it to clients with lite subscriptions, which are RocketMQ's: the proxy's and 5.x clients"
)

C, P = RequestCode, Patience

_ROWS = (
    # --- producers
    Row(C.SEND_MESSAGE, client.SendMessageRequestHeader, _SEND, P.SEND),
    Row(C.SEND_MESSAGE_V2, client.SendMessageRequestHeaderV2, _SEND, P.SEND),
    Row(C.SEND_BATCH_MESSAGE, client.SendMessageRequestHeaderV2, _SEND, P.SEND),
    Row(C.SEND_REPLY_MESSAGE, client.SendMessageRequestHeader, _REPLY),
    Row(C.SEND_REPLY_MESSAGE_V2, client.SendMessageRequestHeaderV2, _REPLY),
    Row(C.RECALL_MESSAGE, client.RecallMessageRequestHeader, (_topic(PUB),), P.SEND),
    Row(C.END_TRANSACTION, client.EndTransactionRequestHeader, _HALF_AT_OFFSET, P.TRANSACTION),
    Row(C.RESUME_CHECK_HALF_MESSAGE, client.ResumeCheckHalfMessageRequestHeader, _HALF_OF_ID),
    # --- consumers
    Row(C.PULL_MESSAGE, client.PullMessageRequestHeader, _PULL, P.PULL),
    Row(C.LITE_PULL_MESSAGE, client.PullMessageRequestHeader, _PULL, P.LITE_PULL),
    Row(C.POP_MESSAGE, client.PopMessageRequestHeader, _POP, P.PULL),
    Row(C.PEEK_MESSAGE, client.PeekMessageRequestHeader, _POP, P.PULL),
    Row(C.NOTIFICATION, client.NotificationRequestHeader, _POP, P.PULL),
    Row(C.POLLING_INFO, client.PollingInfoRequestHeader, _SEES_POSITION, P.PULL),
    Row(C.ACK_MESSAGE, client.AckMessageRequestHeader, _POP, P.ACK),
    Row(C.CHANGE_MESSAGE_INVISIBLETIME, client.ChangeInvisibleTimeRequestHeader, _POP, P.ACK),
    Row(C.BATCH_ACK_MESSAGE, None, _ACKS, P.ACK),
    Row(C.POP_ROLLBACK, None, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.CONSUMER_SEND_MSG_BACK, client.ConsumerSendMsgBackRequestHeader, _SENT_BACK, P.SEND),
    Row(C.QUERY_CONSUMER_OFFSET, client.QueryConsumerOffsetRequestHeader, _SEES_POSITION),
    Row(C.UPDATE_CONSUMER_OFFSET, client.UpdateConsumerOffsetRequestHeader, _MOVES_POSITION),
    Row(C.GET_CONSUMER_LIST_BY_GROUP, client.GetConsumerListByGroupRequestHeader, (_group(GET, SUB),)),
    Row(C.LOCK_BATCH_MQ, client.LockBatchMqRequestHeader, _LOCK),
    Row(C.UNLOCK_BATCH_MQ, client.UnlockBatchMqRequestHeader, _LOCK),
    Row(C.HEART_BEAT, client.HeartbeatRequestHeader, _HEARTBEAT, P.HEARTBEAT),
    Row(C.UNREGISTER_CLIENT, client.UnregisterClientRequestHeader, (_group(SUB),)),
    Row(C.CHECK_CLIENT_CONFIG, None, _CHECKED_CLIENT),
    Row(C.QUERY_ASSIGNMENT, None, _ASSIGNMENT),
    Row(C.GET_CLIENT_CONFIG, None, (), to_client=True, nobody=_NUMBER_ALONE),
    # --- lookups
    Row(C.QUERY_BROKER_OFFSET, None, _READ_CLUSTER, nobody=_NUMBER_ALONE),
    Row(C.SEARCH_OFFSET_BY_TIMESTAMP, client.SearchOffsetRequestHeader, _OFFSETS),
    Row(C.GET_MAX_OFFSET, client.GetMaxOffsetRequestHeader, _OFFSETS_OF_MANY),
    Row(C.GET_MIN_OFFSET, client.GetMinOffsetRequestHeader, _OFFSETS_OF_MANY),
    Row(C.GET_EARLIEST_MSG_STORETIME, client.GetEarliestMsgStoretimeRequestHeader, _OFFSETS),
    Row(C.QUERY_MESSAGE, client.QueryMessageRequestHeader, (_topic(GET, SUB),)),
    Row(C.VIEW_MESSAGE_BY_ID, client.ViewMessageRequestHeader, _STORED),
    Row(C.QUERY_CONSUME_QUEUE, admin.QueryConsumeQueueRequestHeader, (_topic(GET), _group(GET)), P.ADMIN),
    # --- topics
    Row(C.UPDATE_AND_CREATE_TOPIC, admin.CreateTopicRequestHeader, (_topic(CREATE),), P.ADMIN),
    Row(C.UPDATE_AND_CREATE_TOPIC_LIST, admin.CreateTopicListRequestHeader, _CREATES_TOPICS, P.ADMIN),
    Row(C.UPDATE_AND_CREATE_STATIC_TOPIC, None, (_cluster(UPDATE),), P.ADMIN),
    Row(C.DELETE_TOPIC_IN_BROKER, admin.DeleteTopicRequestHeader, (_topic(DELETE),), P.ADMIN),
    Row(C.DELETE_TOPIC_IN_BROKER_LIST, None, _DELETES_TOPICS, P.ADMIN),
    Row(C.GET_TOPIC_CONFIG, admin.GetTopicConfigRequestHeader, (_topic(GET),), P.ADMIN),
    Row(C.GET_TOPIC_STATS_INFO, admin.GetTopicStatsInfoRequestHeader, (_topic(GET),), P.ADMIN),
    Row(C.QUERY_TOPIC_CONSUME_BY_WHO, admin.QueryTopicConsumeByWhoRequestHeader, (_topic(GET),), P.ADMIN),
    Row(C.QUERY_CONSUME_TIME_SPAN, admin.QueryConsumeTimeSpanRequestHeader, _TIME_SPAN, P.ADMIN),
    Row(C.GET_ALL_TOPIC_CONFIG, admin.GetAllTopicConfigRequestHeader, _LIST_TOPICS, P.ADMIN),
    Row(C.GET_TOPIC_CONFIG_LIST, None, _LIST_TOPICS, nobody=_NUMBER_ALONE),
    Row(C.GET_TOPIC_NAME_LIST, None, _LIST_TOPICS, nobody=_NUMBER_ALONE),
    Row(C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None, _LIST_TOPICS, P.ADMIN),
    Row(C.CLEAN_UNUSED_TOPIC, None, _CHANGE_CLUSTER, P.ADMIN),
    # --- groups
    Row(C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, _CREATES_GROUP, P.ADMIN),
    Row(C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, _CREATES_GROUPS, P.ADMIN),
    Row(C.DELETE_SUBSCRIPTIONGROUP, admin.DeleteSubscriptionGroupRequestHeader, _DELETES_GROUP, P.ADMIN),
    Row(C.DELETE_SUBSCRIPTION_GROUP_LIST, None, _DELETES_GROUPS, P.ADMIN),
    Row(C.GET_SUBSCRIPTIONGROUP_CONFIG, admin.GetSubscriptionGroupConfigRequestHeader, _SEES_GROUP, P.ADMIN),
    Row(
        C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, admin.GetAllSubscriptionGroupRequestHeader, _LIST_GROUPS, P.ADMIN
    ),
    Row(
        C.GET_CONSUMER_CONNECTION_LIST, client.GetConsumerConnectionListRequestHeader, (_group(GET),), P.ADMIN
    ),
    Row(
        C.GET_PRODUCER_CONNECTION_LIST, client.GetProducerConnectionListRequestHeader, _READ_CLUSTER, P.ADMIN
    ),
    Row(C.GET_ALL_PRODUCER_INFO, client.GetAllProducerInfoRequestHeader, _LIST_CLUSTER, P.ADMIN),
    Row(C.GET_CONSUME_STATS, admin.GetConsumeStatsRequestHeader, _CONSUME_STATS, P.ADMIN),
    Row(C.GET_BROKER_CONSUME_STATS, admin.GetConsumeStatsInBrokerHeader, _READ_CLUSTER, P.ADMIN),
    Row(C.GET_CONSUMER_RUNNING_INFO, client.GetConsumerRunningInfoRequestHeader, (_group(GET),)),
    Row(C.CONSUME_MESSAGE_DIRECTLY, client.ConsumeMessageDirectlyResultRequestHeader, _CONSUMED_DIRECTLY),
    Row(C.INVOKE_BROKER_TO_RESET_OFFSET, client.ResetOffsetRequestHeader, _RESETS_OFFSET),
    Row(C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, client.GetConsumerStatusRequestHeader, _CONSUMER_STATUS),
    Row(C.CLONE_GROUP_OFFSET, client.CloneGroupOffsetRequestHeader, _CLONES_OFFSETS, P.ADMIN),
    Row(C.QUERY_CORRECTION_OFFSET, client.QueryCorrectionOffsetHeader, _CORRECTION),
    Row(C.QUERY_TOPICS_BY_CONSUMER, admin.QueryTopicsByConsumerRequestHeader, _SEES_GROUP, P.ADMIN),
    Row(
        C.QUERY_SUBSCRIPTION_BY_CONSUMER,
        admin.QuerySubscriptionByConsumerRequestHeader,
        _SEES_SUBSCRIPTION,
        P.ADMIN,
    ),
    Row(C.UPDATE_AND_GET_GROUP_FORBIDDEN, admin.UpdateGroupForbiddenRequestHeader, _FORBIDS, P.ADMIN),
    Row(C.SET_MESSAGE_REQUEST_MODE, None, _SETS_MODE),
    Row(C.GET_ALL_MESSAGE_REQUEST_MODE, None, _LIST_CLUSTER),
    Row(C.GET_ALL_CONSUMER_OFFSET, None, _LIST_CLUSTER, P.ADMIN),
    Row(C.WHO_CONSUME_THE_MESSAGE, None, _READ_CLUSTER, nobody=_NUMBER_ALONE),
    Row(C.SUSPEND_CONSUMER, None, _CHANGE_CLUSTER, nobody=_NUMBER_ALONE),
    Row(C.RESUME_CONSUMER, None, _CHANGE_CLUSTER, nobody=_NUMBER_ALONE),
    Row(C.RESET_CONSUMER_OFFSET_IN_BROKER, None, _CHANGE_CLUSTER, nobody=_NUMBER_ALONE),
    Row(C.ADJUST_CONSUMER_THREAD_POOL, None, _CHANGE_CLUSTER, nobody=_NUMBER_ALONE),
    Row(C.REGISTER_FILTER_SERVER, None, _CHANGE_CLUSTER, nobody=_FILTER_SERVERS),
    Row(C.REGISTER_MESSAGE_FILTER_CLASS, None, _CHANGE_CLUSTER, nobody=_FILTER_SERVERS),
    # --- the broker itself
    Row(C.UPDATE_BROKER_CONFIG, None, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.GET_BROKER_CONFIG, None, _READ_CLUSTER, P.ADMIN),
    Row(C.GET_BROKER_RUNTIME_INFO, None, _READ_CLUSTER, P.ADMIN),
    Row(C.TRIGGER_DELETE_FILES, None, _CHANGE_CLUSTER, nobody=_NUMBER_ALONE),
    Row(C.DELETE_EXPIRED_COMMITLOG, None, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.CLEAN_EXPIRED_CONSUMEQUEUE, None, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.VIEW_BROKER_STATS_DATA, admin.ViewBrokerStatsDataRequestHeader, _READ_CLUSTER, P.ADMIN),
    Row(C.GET_ALL_DELAY_OFFSET, None, _READ_CLUSTER),
    Row(C.GET_TIMER_CHECK_POINT, None, _READ_CLUSTER),
    Row(C.GET_TIMER_METRICS, None, _READ_CLUSTER),
    Row(
        C.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        admin.CheckRocksdbCqWriteProgressRequestHeader,
        _READ_CLUSTER,
        P.ADMIN,
    ),
    Row(
        C.EXPORT_ROCKSDB_CONFIG_TO_JSON, admin.ExportRocksDBConfigToJsonRequestHeader, _READ_CLUSTER, P.ADMIN
    ),
    Row(C.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, None, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, None, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.GET_COLD_DATA_FLOW_CTR_INFO, None, _READ_CLUSTER, P.ADMIN),
    Row(C.SET_COMMITLOG_READ_MODE, None, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.SWITCH_TIMER_ENGINE, None, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.ADD_BROKER, cluster.AddBrokerRequestHeader, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.REMOVE_BROKER, cluster.RemoveBrokerRequestHeader, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.POP_LITE_MESSAGE, client.PopLiteMessageRequestHeader, _POP, P.PULL),
    Row(C.LITE_SUBSCRIPTION_CTL, None, _LITE_SUBSCRIPTIONS),
    Row(C.ACK_LITE_MESSAGE, None, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.GET_BROKER_LITE_INFO, None, _READ_CLUSTER),
    Row(C.GET_PARENT_TOPIC_INFO, admin.GetParentTopicInfoRequestHeader, (_topic(GET),)),
    Row(C.GET_LITE_TOPIC_INFO, admin.GetLiteTopicInfoRequestHeader, (_topic(GET, field="parent_topic"),)),
    Row(C.GET_LITE_CLIENT_INFO, admin.GetLiteClientInfoRequestHeader, _LITE_CLIENT),
    Row(C.GET_LITE_GROUP_INFO, admin.GetLiteGroupInfoRequestHeader, _SEES_LITE_GROUP),
    Row(C.TRIGGER_LITE_DISPATCH, admin.TriggerLiteDispatchRequestHeader, (_group(UPDATE, field="group"),)),
    # --- schemas
    Row(C.READ_SCHEMAS, admin.SchemaRequestHeader, _READS_SCHEMAS),
    Row(C.CHANGE_SCHEMAS, admin.SchemaRequestHeader, _CHANGES_SCHEMAS),
    # --- brokers among themselves
    Row(C.NOTIFY_MIN_BROKER_ID_CHANGE, cluster.NotifyMinBrokerIdChangeRequestHeader, _CHANGE_CLUSTER),
    Row(C.EXCHANGE_BROKER_HA_INFO, cluster.ExchangeHAInfoRequestHeader, _CHANGE_CLUSTER),
    Row(C.GET_BROKER_HA_STATUS, None, _READ_CLUSTER),
    Row(C.RESET_MASTER_FLUSH_OFFSET, cluster.ResetMasterFlushOffsetHeader, _CHANGE_CLUSTER, P.ADMIN),
    Row(C.GET_BROKER_EPOCH_CACHE, None, _READ_CLUSTER, P.ADMIN),
    Row(C.NOTIFY_BROKER_ROLE_CHANGED, cluster.NotifyBrokerRoleChangedRequestHeader, _CHANGE_CLUSTER),
    # --- name server
    Row(C.GET_ROUTEINFO_BY_TOPIC, cluster.GetRouteInfoRequestHeader, _ROUTE),
    Row(C.REGISTER_BROKER, cluster.RegisterBrokerRequestHeader, _BROKER),
    Row(C.UNREGISTER_BROKER, cluster.UnRegisterBrokerRequestHeader, _BROKER),
    Row(C.BROKER_HEARTBEAT, cluster.BrokerHeartbeatRequestHeader, _BROKER),
    Row(C.QUERY_DATA_VERSION, cluster.QueryDataVersionRequestHeader, _BROKER),
    Row(C.GET_BROKER_MEMBER_GROUP, cluster.GetBrokerMemberGroupRequestHeader, _SEES_BROKER),
    Row(C.GET_BROKER_CLUSTER_INFO, None, _LIST_CLUSTER),
    Row(C.WIPE_WRITE_PERM_OF_BROKER, cluster.WipeWritePermOfBrokerRequestHeader, _BROKERS_RIGHT),
    Row(C.ADD_WRITE_PERM_OF_BROKER, cluster.AddWritePermOfBrokerRequestHeader, _BROKERS_RIGHT),
    Row(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, _LIST_TOPICS),
    Row(C.GET_TOPICS_BY_CLUSTER, cluster.GetTopicsByClusterRequestHeader, _LIST_TOPICS),
    Row(C.GET_SYSTEM_TOPIC_LIST_FROM_NS, None, _LIST_TOPICS),
    Row(C.GET_UNIT_TOPIC_LIST, None, _LIST_TOPICS),
    Row(C.GET_HAS_UNIT_SUB_TOPIC_LIST, None, _LIST_TOPICS),
    Row(C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None, _LIST_TOPICS),
    Row(C.DELETE_TOPIC_IN_NAMESRV, cluster.DeleteTopicFromNamesrvRequestHeader, (_topic(DELETE),)),
    Row(C.REGISTER_TOPIC_IN_NAMESRV, cluster.RegisterTopicRequestHeader, (_topic(CREATE),)),
    Row(C.PUT_KV_CONFIG, cluster.PutKVConfigRequestHeader, _CHANGE_CLUSTER),
    Row(C.GET_KV_CONFIG, cluster.GetKVConfigRequestHeader, _READ_CLUSTER),
    Row(C.DELETE_KV_CONFIG, cluster.DeleteKVConfigRequestHeader, _CHANGE_CLUSTER),
    Row(C.GET_KVLIST_BY_NAMESPACE, cluster.GetKVListByNamespaceRequestHeader, _READ_CLUSTER),
    Row(C.UPDATE_NAMESRV_CONFIG, None, _CHANGE_CLUSTER),
    Row(C.GET_NAMESRV_CONFIG, None, _READ_CLUSTER),
    # --- controller
    Row(C.CONTROLLER_ALTER_SYNC_STATE_SET, cluster.AlterSyncStateSetRequestHeader, _CHANGE_CLUSTER),
    Row(C.CONTROLLER_ELECT_MASTER, cluster.ElectMasterRequestHeader, _CHANGE_CLUSTER),
    Row(C.CONTROLLER_REGISTER_BROKER, cluster.RegisterBrokerToControllerRequestHeader, _CHANGE_CLUSTER),
    Row(C.CONTROLLER_GET_REPLICA_INFO, cluster.GetReplicaInfoRequestHeader, _REPLICA_INFO),
    Row(C.CONTROLLER_GET_METADATA_INFO, None, _READ_CLUSTER),
    Row(C.CONTROLLER_GET_SYNC_STATE_DATA, None, _READ_CLUSTER),
    Row(C.UPDATE_CONTROLLER_CONFIG, None, _CHANGE_CLUSTER),
    Row(C.GET_CONTROLLER_CONFIG, None, _READ_CLUSTER),
    Row(C.CLEAN_BROKER_DATA, cluster.CleanControllerBrokerDataRequestHeader, _CHANGE_CLUSTER),
    Row(C.CONTROLLER_GET_NEXT_BROKER_ID, cluster.GetNextBrokerIdRequestHeader, _CHANGE_CLUSTER),
    Row(C.CONTROLLER_APPLY_BROKER_ID, cluster.ApplyBrokerIdRequestHeader, _CHANGE_CLUSTER),
    Row(C.BROKER_CLOSE_CHANNEL_REQUEST, None, _CHANGE_CLUSTER, nobody=_AMONG_CONTROLLERS),
    Row(C.CHECK_NOT_ACTIVE_BROKER_REQUEST, None, _CHANGE_CLUSTER, nobody=_AMONG_CONTROLLERS),
    Row(C.GET_BROKER_LIVE_INFO_REQUEST, None, _READ_CLUSTER, nobody=_AMONG_CONTROLLERS),
    Row(C.GET_SYNC_STATE_DATA_REQUEST, None, _READ_CLUSTER, nobody=_AMONG_CONTROLLERS),
    Row(C.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST, None, _CHANGE_CLUSTER, nobody=_AMONG_CONTROLLERS),
    # --- users and policies: a user who may change them can gain every right
    Row(C.AUTH_CREATE_USER, admin.CreateUserRequestHeader, (), P.ADMIN, super_only=True),
    Row(C.AUTH_UPDATE_USER, admin.UpdateUserRequestHeader, (), P.ADMIN, super_only=True),
    Row(C.AUTH_DELETE_USER, admin.DeleteUserRequestHeader, (), P.ADMIN, super_only=True),
    Row(C.AUTH_GET_USER, admin.GetUserRequestHeader, _READ_CLUSTER, P.ADMIN),
    Row(C.AUTH_LIST_USER, admin.ListUsersRequestHeader, _LIST_CLUSTER, P.ADMIN),
    Row(C.AUTH_CREATE_ACL, admin.CreateAclRequestHeader, (), P.ADMIN, super_only=True),
    Row(C.AUTH_UPDATE_ACL, admin.UpdateAclRequestHeader, (), P.ADMIN, super_only=True),
    Row(C.AUTH_DELETE_ACL, admin.DeleteAclRequestHeader, (), P.ADMIN, super_only=True),
    Row(C.AUTH_GET_ACL, admin.GetAclRequestHeader, _READ_CLUSTER, P.ADMIN),
    Row(C.AUTH_LIST_ACL, admin.ListAclsRequestHeader, _LIST_CLUSTER, P.ADMIN),
    # --- sent by servers to clients
    Row(C.CHECK_TRANSACTION_STATE, client.CheckTransactionStateRequestHeader, (), to_client=True),
    Row(C.NOTIFY_CONSUMER_IDS_CHANGED, client.NotifyConsumerIdsChangedRequestHeader, (), to_client=True),
    Row(C.RESET_CONSUMER_OFFSET_IN_CONSUMER, None, (), to_client=True, nobody=_NUMBER_ALONE),
    Row(C.RESET_CONSUMER_CLIENT_OFFSET, client.ResetOffsetRequestHeader, (), to_client=True),
    Row(C.GET_CONSUMER_STATUS_FROM_CLIENT, client.GetConsumerStatusRequestHeader, (), to_client=True),
    Row(C.PUSH_REPLY_MESSAGE_TO_CLIENT, client.ReplyMessageRequestHeader, (), to_client=True),
    Row(
        C.NOTIFY_UNSUBSCRIBE_LITE,
        client.NotifyUnsubscribeLiteRequestHeader,
        (),
        to_client=True,
        nobody=_OF_PROXIES,
    ),
)

TABLE: dict[int, Row] = {row.code: row for row in _ROWS}
"""Every request code. A code without a row is refused."""


def header_of(code: int) -> type[Header] | None:
    """None for a code that has no header, or that nobody knows."""
    return TABLE[code].header if code in TABLE else None
