"""Create, change, show and delete topics (AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec.structs import asdict

from mqspark.broker.admin.change import AnswerWhenSafe
from mqspark.broker.admin.paging import page_of
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.attributes import (
    SCHEMA_VALIDATION,
    VALIDATION_OFF,
    attribute_changes,
    changed_attributes,
)
from mqspark.broker.tables.topics import (
    MULTI_TAG,
    SINGLE_TAG,
    Topic,
    check_kept_topic,
    copy_config,
)
from mqspark.errors import InvalidMessage, MQError
from mqspark.message import check_topic
from mqspark.protocol.bodies.body import decode_nameless, encode_body
from mqspark.protocol.bodies.longtables import count_in, decode_long, parts_of_names
from mqspark.protocol.bodies.topic_bodies import (
    MAX_QUEUES,
    CreateTopicListRequestBody,
    DeleteTopicListRequestBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigAndQueueMapping,
    TopicList,
    TopicQueueMappingDetail,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok, ok_in_slices
from mqspark.protocol.headers.admin_headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
)
from mqspark.protocol.receipts import retry_topic_v1, retry_topic_v2
from mqspark.protocol.servers.registration import MAX_MAPPING_BYTES
from mqspark.protocol.session import Session
from mqspark.protocol.slices import ESSENTIAL, Slices, Work

CHANGED_AT_ONCE = 16
"""Topics or groups of a list that are created, changed or deleted in one slice."""

LISTED_AT_ONCE = 2_048
"""Topics that are listed in one slice, before they are encoded."""

CHECKED_AT_ONCE = 256
"""Names of a list that are checked in one slice."""

SOUGHT_AT_ONCE = 512
"""Groups whose retry topics are looked up in one slice."""


MAX_CREATED = 10_000
"""Topics or groups that one request may create or delete."""


def check_list_size(command: Command, mark: bytes = b"{") -> None:
    """Before the list is decoded. ``mark``: what each of its entries has once, or what is between two of them. Raises
    Refusal."""
    count = count_in(command.body, mark) - 1
    if count > MAX_CREATED:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"the list has {count} entries, the limit is {MAX_CREATED}: split it",
        )


def listed_once(names: Sequence[str], what: str) -> list[str]:
    """The names of a list, each once. ``what``: "topic" or "group name", for the refusal of an empty list. Raises
    Refusal."""
    if not names:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"The specified {what} list is blank.")
    return [*dict.fromkeys(names)]


def existing_topic(state: BrokerState, name: str) -> Topic:
    """Raises Refusal."""
    topic = state.topics.get(name)
    if topic is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    return topic


def _asked_topic(header: CreateTopicRequestHeader) -> TopicConfig:
    """Raises Refusal."""
    if header.topic_filter_type not in (SINGLE_TAG, MULTI_TAG):
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{header.topic_filter_type}] value invalid"
        )
    return TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        order=header.order,
    )


class TopicAdminProcessor:
    def __init__(
        self,
        state: BrokerState,
        change: AnswerWhenSafe,
        remapped: Callable[[Session, Command, str], None],
        gone: Callable[[str], None],
    ) -> None:
        """``remapped`` answers a change of a static topic once it is safe and every message before it is. ``gone``
        answers the requests that wait for messages of a deleted topic."""
        self._state = state
        self._change = change
        self._remapped = remapped
        self._gone = gone
        self.handlers: dict[int, Handler] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_topics,
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: self.update_static_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER_LIST: self.delete_topics,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.topic_config,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
        }

    def update_topic(self, session: Session, command: Command) -> None:
        header = command.header(CreateTopicRequestHeader)
        with self._state.stats.creating(header.topic):
            topic = self._checked(_asked_topic(header), attribute_changes(header.attributes))
            self._state.topics.put(topic, session=session)
        self._change(session, command, topics=True)

    def update_static_topic(self, session: Session, command: Command) -> None:
        """Create a static topic, or remap its queues. Raises Refusal, TableFull; then nothing has changed."""
        header = command.header(CreateTopicRequestHeader)
        if len(command.body) > MAX_MAPPING_BYTES:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the mapping takes {len(command.body)} bytes, at most {MAX_MAPPING_BYTES} are read",
            )
        detail = decode_nameless(TopicQueueMappingDetail, command.body)  # ``check`` sees its names
        topics, mappings = self._state.topics, self._state.mappings
        topic = self._checked(_asked_topic(header), {})
        if detail.topic != topic.topic_name:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The topic name is inconsistent in broker  {self._state.config.broker_name}",
            )
        detail = mappings.check(detail, force=header.force)
        self._check_physical_queues(topic, detail)
        before = mappings.table.get(topic.topic_name)
        mappings.update(detail, force=header.force)
        try:
            topics.put(topic, session=session)
        except MQError:
            mappings.put_back(topic.topic_name, before)
            raise
        topics.touch()
        self._remapped(session, command, topic.topic_name)

    def _check_physical_queues(self, topic: TopicConfig, detail: TopicQueueMappingDetail) -> None:
        """Whether the topic has the physical queues that its mapping names (checkPhysicalQueueConsistence). Raises
        Refusal."""
        if topic.read_queue_nums < topic.write_queue_nums:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "Read queues is smaller than write queues")
        for parts in detail.hosted_queues.values():
            for part in parts:
                if part.bname == detail.bname and part.queue_id >= topic.write_queue_nums:
                    raise Refusal(
                        ResponseCode.SYSTEM_ERROR, "The physical queue id is overflow the write queues"
                    )

    def update_topics(self, session: Session, command: Command) -> Slices:
        check_list_size(command)
        body = yield from decode_long(CreateTopicListRequestBody, command.body, "topicConfigList")
        yield ESSENTIAL
        for number, config in enumerate(body.topic_config_list, 1):
            changes = self._listed_changes(config)
            plain = copy_config(config)
            plain.attributes = {}
            with self._state.stats.creating(config.topic_name):
                self._state.topics.put(self._checked(plain, changes), session=session)
            if number % CHANGED_AT_ONCE == 0:
                yield ESSENTIAL
        self._change(session, command, topics=True)
        return None

    def _listed_changes(self, config: TopicConfig) -> dict[str, str | None]:
        """The changes of attributes that a list of topics asks for. A name without a sign, as in a table of topics
        that was read from a broker, says what holds afterwards."""
        old = self._state.topics.get(config.topic_name)
        present = {} if old is None else old.config.attributes
        changes: dict[str, str | None] = {}
        for name, value in config.attributes.items():
            if name[:1] == "-":
                changes[name] = None
            elif name[:1] == "+" or present.get(name) != value:
                changes[f"+{name.removeprefix('+')}"] = value
        return changes

    def _checked(self, config: TopicConfig, changes: dict[str, str | None]) -> TopicConfig:
        """The configuration of a topic that an operator may have. ``changes`` maps ``+name`` to a value or ``-name`` to
        None; they are applied to the topic's present attributes. Raises Refusal."""
        if changes.get("+message.type") == "LITE" and not self._state.store_config.multi_dispatch:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                "message.type=LITE needs a broker with enableLmq=true and enableMultiDispatch=true",
            )
        validation = changes.get(f"+{SCHEMA_VALIDATION}") or VALIDATION_OFF
        broker = self._state.config
        if validation != VALIDATION_OFF and not (broker.schema_registry_enable or broker.namesrv_addr):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"{SCHEMA_VALIDATION}={validation} needs schemaRegistryEnable=true on this broker, or a name server to "
                "find the broker that has it",
            )
        topics = self._state.topics
        name = config.topic_name
        try:
            check_topic(name)
        except InvalidMessage as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if topics.is_system(name):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        old = topics.get(name)
        for what, number in (
            ("readQueueNums", config.read_queue_nums),
            ("writeQueueNums", config.write_queue_nums),
        ):
            allowed = self._state.config.max_topic_queue_nums
            most = min(MAX_QUEUES, max(allowed, 0 if old is None else old.queue_limit))
            if not 0 <= number <= most:
                raise Refusal(
                    ResponseCode.INVALID_PARAMETER,
                    f"{what}={number} is not between 0 and {most} (maxTopicQueueNums)",
                )
        if not 0 <= config.perm < 8:
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"perm={config.perm} is not a permission")
        config.attributes = changed_attributes(dict(old.config.attributes) if old else None, changes)
        return config

    def delete_topic(self, session: Session, command: Command) -> Slices:
        name = command.header(DeleteTopicRequestHeader).topic
        self._check_deletion(name)
        yield from self._delete([name])
        self._change(session, command, topics=True)
        return None

    def delete_topics(self, session: Session, command: Command) -> Slices:
        """All of them, or none if one of the names is refused. Only RocketMQ 5.5.1 and newer knows this request. Raises
        Refusal; TableFull when the notes of deletions are full, perhaps with some of the topics deleted."""
        check_list_size(command, b",")
        body = yield from decode_long(DeleteTopicListRequestBody, command.body, "topicList", parts_of_names)
        names = listed_once(body.topic_list, "topic")
        for number, name in enumerate(names, 1):
            self._check_deletion(name)
            if number % CHECKED_AT_ONCE == 0:
                yield
        yield from self._delete(names)
        self._change(session, command, topics=True)
        return None

    def _check_deletion(self, name: str) -> None:
        """Raises Refusal."""
        if not name.strip():
            raise Refusal(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if self._state.topics.is_system(name):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        try:
            check_kept_topic(name)
        except InvalidMessage as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None

    def _delete(self, names: Collection[str]) -> Work[None]:
        """The topics with POP's retry topics of them."""
        state = self._state
        doomed = dict.fromkeys(names)
        topics = frozenset(names)
        yield from state.remove_lite_topics(topics)
        for number, (name, group) in enumerate((yield from state.offsets.pairs_of(topics)), 1):
            retries = retry_topic_v1(name, group), retry_topic_v2(name, group)
            doomed |= dict.fromkeys(filter(state.topics.get, retries))
            if number % SOUGHT_AT_ONCE == 0:
                yield
        yield from self._remove([*doomed])
        for number, name in enumerate(names, 1):
            self._gone(name)
            if number % CHANGED_AT_ONCE == 0:
                yield ESSENTIAL

    def _remove(self, doomed: Sequence[str]) -> Work[None]:
        state = self._state
        for first in range(0, len(doomed), CHANGED_AT_ONCE):
            some = doomed[first : first + CHANGED_AT_ONCE]
            for topic in some:
                state.store.deletions.admit(topic)
            for topic in some:
                state.topics.remove(topic)
                state.mappings.remove(topic)
            state.store.delete_topics(some)
            if len(some) == CHANGED_AT_ONCE:
                yield ESSENTIAL
        yield from state.offsets.remove_topics(set(doomed))

    def topic_config(self, session: Session, command: Command) -> bytes:
        header = command.header(GetTopicConfigRequestHeader)
        config = existing_topic(self._state, header.topic).config
        static = self._state.mappings.table.get(header.topic)
        if header.lo and static is not None:
            config = TopicConfigAndQueueMapping(**asdict(config), mapping_detail=static.detail)
        return ok(command, None, encode_body(config))

    def all_topics(self, session: Session, command: Command) -> Slices:
        topics = self._state.topics
        version, count = topics.data_version, len(topics)
        page = page_of(
            command,
            topics.page,
            version,
            self._state.config.split_metadata_size,
            first_key="topicSeq",
            limit_key="maxTopicNum",
        )
        table: dict[str, TopicConfig] = {}
        for number, topic in enumerate(topics if page is None else filter(None, map(topics.get, page)), 1):
            table[topic.name] = topic.config
            if number % LISTED_AT_ONCE == 0:
                yield
        mappings = self._state.mappings
        body = TopicConfigAndMappingSerializeWrapper(
            topic_config_table=table,
            data_version=version,
            mapping_data_version=mappings.data_version,
            topic_queue_mapping_detail_map=mappings.details(table),
        )
        return (yield from ok_in_slices(command, body, {"totalTopicNum": str(count)}))

    def system_topics(self, session: Session, command: Command) -> Slices:
        topics = self._state.topics
        names: list[str] = []
        for number, name in enumerate(topics.names(), 1):
            if topics.is_system(name):
                names.append(name)
            if number % LISTED_AT_ONCE == 0:
                yield
        return (yield from ok_in_slices(command, TopicList(topic_list=names)))
