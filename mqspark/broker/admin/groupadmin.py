"""Create, change, show and delete consumer groups (AdminBrokerProcessor)."""

from __future__ import annotations

from mqspark.broker.admin.change import AnswerWhenSafe
from mqspark.broker.admin.paging import page_of
from mqspark.broker.admin.topicadmin import (
    CHANGED_AT_ONCE,
    CHECKED_AT_ONCE,
    LISTED_AT_ONCE,
    check_list_size,
    listed_once,
)
from mqspark.broker.state.litenames import bound_topic
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.attributes import check_group_attribute
from mqspark.errors import InvalidMessage
from mqspark.message import check_group
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.longtables import decode_long, parts_of_names
from mqspark.protocol.bodies.topic_bodies import (
    DeleteSubscriptionGroupListRequestBody,
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok, ok_in_slices
from mqspark.protocol.headers.admin_headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import ESSENTIAL, Slices, Work


class GroupAdminProcessor:
    def __init__(self, state: BrokerState, change: AnswerWhenSafe) -> None:
        self._state = state
        self._change = change
        self.handlers: dict[int, Handler] = {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: self.delete_groups,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.group_forbidden,
        }

    def update_group(self, session: Session, command: Command) -> None:
        self._put_group(decode_body(SubscriptionGroupConfig, command.body), session)
        self._change(session, command, topics=False)

    def update_groups(self, session: Session, command: Command) -> Slices:
        check_list_size(command)
        body = yield from decode_long(SubscriptionGroupList, command.body, "groupConfigList")
        configs = body.group_config_list
        for number, config in enumerate(configs, 1):
            check_group_name(config.group_name)
            if number % CHECKED_AT_ONCE == 0:
                yield
        yield ESSENTIAL
        for number, config in enumerate(configs, 1):
            self._put_group(config, session)
            if number % CHANGED_AT_ONCE == 0:
                yield ESSENTIAL
        self._change(session, command, topics=False)
        return None

    def _put_group(self, config: SubscriptionGroupConfig, session: Session) -> None:
        with self._state.stats.creating():
            self._check_and_put(config, session)

    def _check_and_put(self, config: SubscriptionGroupConfig, session: Session) -> None:
        check_group_name(config.group_name)
        old = self._state.subscriptions.configured(config.group_name)
        attributes = dict(old.attributes) if old else {}
        for signed_name, value in config.attributes.items():
            name = signed_name[1:] if signed_name[:1] in "+-" else signed_name
            if signed_name.startswith("-"):
                if old is None:
                    remark = f"only add attribute is supported while creating topic. key: {name}"
                    raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
                if name not in attributes:
                    raise Refusal(ResponseCode.SYSTEM_ERROR, f"attempt to delete a nonexistent key: {name}")
                del attributes[name]
                continue
            check_group_attribute(name, value)
            if not signed_name.startswith("+"):
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"wrong format key: {name}")
            attributes[name] = value
        config.attributes = attributes
        self._state.subscriptions.put(config, session)

    def delete_group(self, session: Session, command: Command) -> Slices:
        header = command.header(DeleteSubscriptionGroupRequestHeader)
        yield from self._delete(header.group_name, clean_offset=header.clean_offset)
        self._change(session, command, topics=False)
        return None

    def delete_groups(self, session: Session, command: Command) -> Slices:
        """All of them, or none if one of the names is refused. Only RocketMQ 5.5.1 and newer knows this request."""
        check_list_size(command, b",")
        body = yield from decode_long(
            DeleteSubscriptionGroupListRequestBody, command.body, "groupNameList", parts_of_names
        )
        names = listed_once(body.group_name_list, "group name")
        if not all(map(str.strip, names)):
            raise Refusal(ResponseCode.INVALID_PARAMETER, "The specified group name is blank.")
        for name in names:
            yield from self._delete(name, clean_offset=body.clean_offset)
            yield ESSENTIAL
        self._change(session, command, topics=False)
        return None

    def _delete(self, name: str, *, clean_offset: bool) -> Work[None]:
        """With the offsets, if that is asked for, or if it is a group of lite topics."""
        config = self._state.subscriptions.configured(name)
        is_lite = config is not None and bound_topic(config) is not None
        self._state.subscriptions.remove(name)
        if clean_offset or is_lite:
            yield from self._state.offsets.remove_group(name)
        yield from self._state.stats.forget_group(name)

    def all_groups(self, session: Session, command: Command) -> Slices:
        subscriptions = self._state.subscriptions
        version, count = subscriptions.data_version, len(subscriptions)
        page = page_of(
            command,
            subscriptions.page,
            version,
            self._state.config.split_metadata_size,
            first_key="groupSeq",
            limit_key="maxGroupNum",
        )
        table: dict[str, SubscriptionGroupConfig] = {}
        groups = subscriptions if page is None else filter(None, map(subscriptions.configured, page))
        for number, group in enumerate(groups, 1):
            table[group.group_name] = group
            if number % LISTED_AT_ONCE == 0:
                yield
        body = SubscriptionGroupWrapper(
            data_version=version,
            forbidden_table=(yield from subscriptions.forbidden_in_slices()),
            subscription_group_table=table,
        )
        return (yield from ok_in_slices(command, body, {"totalGroupNum": str(count)}))

    def group_config(self, session: Session, command: Command) -> bytes:
        name = command.header(GetSubscriptionGroupConfigRequestHeader).group
        config = self._state.subscriptions.find(name, session)
        if config is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group:[{name}] not exist")
        return ok(command, None, encode_body(config))

    def group_forbidden(self, session: Session, command: Command) -> bytes:
        header = command.header(UpdateGroupForbiddenRequestHeader)
        subscriptions = self._state.subscriptions
        if header.readable is not None:
            subscriptions.forbid_read(header.group, header.topic, not header.readable)
        readable = not subscriptions.is_read_forbidden(header.group, header.topic)
        return ok(
            command,
            {},
            encode_body(GroupForbidden(group=header.group, topic=header.topic, readable=readable)),
        )


def check_group_name(name: str) -> None:
    try:
        check_group(name)
    except InvalidMessage as error:
        raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from None
