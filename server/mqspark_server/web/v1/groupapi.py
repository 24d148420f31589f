"""/api/v1/groups: list, describe, create, change and delete consumer groups, and reset their offsets; who is in a group
and what it does, and whether it pulls or pops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field, TypeAdapter

from mqspark.auth.policies import Action, Kind
from mqspark.base.document import Document
from mqspark.broker.admin.views import GroupView, Member, group_names, groups_view, member_view
from mqspark.errors import IllegalName, InvalidMessage, ProtocolError
from mqspark.message import MessageQueue, check_group
from mqspark.protocol.bodies.admin_bodies import ConsumerRunningInfo
from mqspark.protocol.bodies.body import decode_body, encode_body, queue_of
from mqspark.protocol.bodies.client_bodies import SetMessageRequestModeRequestBody
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.admin_headers import DeleteSubscriptionGroupRequestHeader
from mqspark.protocol.headers.client_headers import (
    GetConsumerRunningInfoRequestHeader,
    ResetOffsetRequestHeader,
)
from mqspark.protocol.slices import Work
from mqspark_server.actions.groupactions import PutGroup, check_deletable
from mqspark_server.actions.offsetmoves import Goal, OffsetMove, QueueMove
from mqspark_server.actions.operating import NotDone
from mqspark_server.shown.nouns import GROUP_SETTINGS, MAX_NAME, OFFSETS, SHARED_QUEUES, ModeName, place_of
from mqspark_server.survey.groupsurvey import modes_of
from mqspark_server.web.callers import CLUSTER, Subject
from mqspark_server.web.problems import Problem, as_problem
from mqspark_server.web.turns import between_turns, entries_of
from mqspark_server.web.v1.asking import (
    ERRORS,
    Asker,
    AskerNow,
    Given,
    GroupName,
    ItemPage,
    PagingNow,
    Prefix,
    QueueId,
    making,
    page_of,
)
from mqspark_server.web.v1.documents import SettingsDocuments, given_by

MAX_QUEUES = 4_096
MAX_PROPERTIES = 256
MAX_STACKS_LENGTH = 1 << 20

router = APIRouter(prefix="/api/v1/groups", tags=["groups"], responses=ERRORS)


_SETTINGS = SettingsDocuments(SubscriptionGroupConfig, GROUP_SETTINGS)
GroupChange = _SETTINGS.change(
    "GroupChange",
    "Settings of a group. An absent field is unchanged; in a new group it has RocketMQ's default.",
)
GroupSettingsView = _SETTINGS.view("GroupSettingsView", group=str, attributes=dict[str, str])


class Reset(Given):
    """The new offsets of a group in a topic."""

    topic: str = Field(min_length=1, max_length=MAX_NAME)
    to: Goal
    timeMs: int | None = Field(default=None, ge=0, le=1 << 62, description="ms since 1970, for `time`")
    queueId: QueueId | None = Field(default=None, description="only this queue moves; `offset` needs one")
    offset: Annotated[int, OFFSETS] | None = None
    dryRun: bool = Field(default=False, description="only report what would happen")


@dataclass(slots=True)
class ResetOutcome(Document):
    group: str
    topic: str
    dry_run: bool
    online: bool = field(metadata={"description": "whether members are connected, which continue from there"})
    queues: list[QueueMove]


@dataclass(slots=True)
class MemberQueue(Document):
    topic: str
    broker: str
    queue_id: int
    cached: int = field(metadata={"description": "messages that wait for the listener"})
    committed: int
    last_pull: int = field(metadata={"description": "ms since 1970"})
    last_consume: int


@dataclass(slots=True)
class MemberState(Document):
    """What a consumer reports about itself."""

    client_id: str
    properties: dict[str, str]
    queues: list[MemberQueue]
    rates: dict[str, dict[str, float]] = field(metadata={"description": "by topic"})
    stacks: str | None = field(metadata={"description": "of its threads, if requested"})


@dataclass(slots=True)
class Mode(Document):
    topic: str
    mode: str = field(metadata={"description": "PULL or POP"})
    share_queues: int = field(metadata={"description": "the queues of how many neighbours; 0: of all"})


class ModeChange(Given):
    topic: str = Field(min_length=1, max_length=MAX_NAME)
    mode: ModeName
    shareQueues: Annotated[int, SHARED_QUEUES] = 0


class Modes(BaseModel):
    items: list[Mode] = Field(description="of topics with a set mode; elsewhere the broker's default applies")


_GROUP = TypeAdapter(GroupView)
_OF_QUEUE = attrgetter("cached_msg_count", "commit_offset", "last_pull_timestamp", "last_consume_timestamp")
"""The fields of RocketMQ's ProcessQueueInfo that a MemberQueue has."""
_RATES = ("pullTps", "pullMs", "consumedTps", "failedTps", "consumeMs")
_OF_RATES = attrgetter("pull_tps", "pull_rt", "consume_ok_tps", "consume_failed_tps", "consume_rt")


@router.get("", response_model=ItemPage[GroupView])
async def list_groups(asker: AskerNow, paging: PagingNow, prefix: Prefix = "") -> Response:
    """Groups that have settings, members or offsets, in the order of their names."""
    asker.authorize(CLUSTER, Action.GET, Action.LIST)
    state = asker.state
    page, following = await between_turns(paging.of_pages(group_names(state), prefix))
    return await page_of(_GROUP, await entries_of(groups_view(state, page)), following)


@router.get("/{group}")
async def describe_group(group: GroupName, asker: AskerNow) -> GroupView:
    """Its members, offsets and lag."""
    asker.authorize_group(group, Action.GET)
    found = await entries_of(groups_view(asker.state, [group]))
    if not found:
        raise Problem(404, f"no group {group!r}")
    return found[0]


@router.get("/{group}/settings", response_model=GroupSettingsView)
async def group_settings(group: GroupName, asker: AskerNow) -> BaseModel:
    asker.authorize_group(group, Action.GET)
    return _settings_view(asker, group)


@router.put("/{group}/settings", **making(GroupSettingsView))
async def put_group(
    group: GroupName, settings: Annotated[dict[str, Any], Depends(given_by(GroupChange))], asker: AskerNow
) -> BaseModel:
    """Create or change a group: with If-Match only if it is unchanged since it was read, with `If-None-Match: *` only
    if it is new."""
    with as_problem(400, InvalidMessage):
        check_group(group)
    old = asker.state.subscriptions.configured(group)
    asker.check_match(old, Subject(Kind.GROUP, group), Action.CREATE)
    new = PutGroup(group=group, settings=settings).config(old)
    await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(new))
    return _settings_view(asker, group)


@router.delete("/{group}", status_code=204)
async def delete_group(
    group: GroupName,
    asker: AskerNow,
    cleanOffsets: bool = Query(default=False, description="delete its offsets, too"),
) -> None:
    """Delete the settings of a group without members."""
    found, subject = asker.state.subscriptions.configured(group), Subject(Kind.GROUP, group)
    if found is None:
        raise asker.refusal(404, f"group {group!r} has no settings", subject, Action.DELETE)
    asker.check_match(found, subject, Action.DELETE)
    try:
        check_deletable(group, is_online=asker.state.clients.consumer(group) is not None)
    except (InvalidMessage, NotDone) as error:
        status = 409 if isinstance(error, NotDone) else 400
        raise asker.refusal(status, str(error), subject, Action.DELETE) from None
    header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=cleanOffsets)
    await asker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)


@router.post("/{group}/reset")
async def reset_group(group: GroupName, reset: Reset, asker: AskerNow) -> ResetOutcome:
    """Move a group to other offsets of a topic, forward or back, live members included."""
    asker.authorize_group(group, Action.GET, Action.UPDATE)
    asker.authorize_topic(reset.topic, Action.GET, Action.UPDATE)
    if reset.to == "offset" and reset.queueId is None:
        raise Problem(422, "queueId is required with `offset`")
    offsets = _BrokerOffsets(asker)
    queues = [] if reset.queueId is None else [place_of(offsets.queue(reset.topic, reset.queueId))]
    for goal, name, given in (("time", "timeMs", reset.timeMs), ("offset", "offset", reset.offset)):
        if (given is not None) != (reset.to == goal):
            raise Problem(422, f"to {reset.to}: give `{name}` with `{goal}`, and only with it")
    move = OffsetMove.towards(reset.to, group, reset.topic, queues, time_ms=reset.timeMs, offset=reset.offset)
    asker.check_known(group)
    with as_problem(400, InvalidMessage):
        moves = [*(await move.moves(offsets)).values()]
    if not reset.dryRun:
        header = ResetOffsetRequestHeader(group=group, topic=reset.topic, timestamp=move.at_ms, is_force=True)
        if reset.queueId is not None:
            (only,) = moves
            header.queue_id, header.offset = only.queue_id, only.after
        await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    online = asker.state.clients.consumer(group) is not None
    return ResetOutcome(group, reset.topic, reset.dryRun, online=online, queues=moves)


@router.get("/{group}/members")
async def list_members(group: GroupName, asker: AskerNow, paging: PagingNow) -> ItemPage[Member]:
    """The connected consumers of a group."""
    asker.authorize_group(group, Action.GET)
    asker.check_known(group)
    found = asker.state.clients.consumer(group)
    members = {} if found is None else {member.client_id: member for member in found.members.values()}
    page, following = paging.of(members)
    return ItemPage(items=[member_view(members[name]) for name in page], next=following)


@router.get("/{group}/members/{clientId}")
async def show_member(
    group: GroupName,
    clientId: str,
    asker: AskerNow,
    stacks: bool = Query(default=False, description="also request the stacks of its threads"),
) -> MemberState:
    """What one consumer is doing. The broker requests it from the consumer."""
    found = asker.state.clients.consumer(group)
    if found is None or clientId not in found.members:
        asker.authorize_group(group, Action.GET)
        raise Problem(404, f"group {group!r} has no member {clientId[:200]!r}")
    header = GetConsumerRunningInfoRequestHeader(
        consumer_group=group, client_id=clientId, jstack_enable=stacks
    )
    answer = await asker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    with as_problem(500, ProtocolError, IllegalName, text="the consumer's answer is malformed: {}"):
        info = decode_body(ConsumerRunningInfo, answer.body)
        queues = [
            MemberQueue(*queue_of(key), *_OF_QUEUE(each))
            for key, each in islice(info.mq_table.items(), MAX_QUEUES)
        ]
    rates = {
        topic: dict(zip(_RATES, _OF_RATES(each), strict=True)) for topic, each in info.status_table.items()
    }
    properties = dict(islice(info.properties.items(), MAX_PROPERTIES))
    text = None if info.jstack is None else info.jstack[:MAX_STACKS_LENGTH]
    return MemberState(clientId, properties, queues, rates, stacks=text)


@router.get("/{group}/modes")
async def show_modes(group: GroupName, asker: AskerNow) -> Modes:
    """How the group consumes its topics."""
    asker.authorize_group(group, Action.GET)
    answer = await asker.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    rows = modes_of(group, answer.body)
    if not rows:
        asker.check_known(group)
    return Modes(items=[Mode(each["topic"], each["mode"], each["share"]) for each in rows])


@router.put("/{group}/modes")
async def put_mode(group: GroupName, change: ModeChange, asker: AskerNow) -> Modes:
    """Set how the group consumes a topic. It applies to consumers that leave the mode to the broker."""
    body = SetMessageRequestModeRequestBody(
        topic=change.topic, consumer_group=group, mode=change.mode, pop_share_queue_num=change.shareQueues
    )
    await asker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode_body(body))
    return await show_modes(group, asker)


class _BrokerOffsets:
    """What this broker has, read between the turns of messages."""

    def __init__(self, asker: Asker) -> None:
        self._asker, self._state = asker, asker.state

    def queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._state.config.broker_name, queue_id)

    async def bounds(self, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Raises Problem."""
        found = self._asker.topic(topic)

        def reading(queue_ids: range) -> Work[dict[MessageQueue, tuple[int, int]]]:
            bounds = {}
            for queue_id in queue_ids:
                low, high = self._state.store.offsets.bounds(topic, queue_id)
                bounds[self.queue(topic, queue_id)] = max(0, low), high  # -1: nothing was ever stored
                yield
            return bounds

        return await between_turns(reading(range(found.read_queue_nums)))

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        await asyncio.sleep(0)
        return self._state.store.offsets.offset_by_timestamp(queue.topic, queue.queue_id, timestamp_ms)

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        found = self._state.offsets.query(group, queue.topic, queue.queue_id)
        return None if found < 0 else found


def _settings_view(asker: Asker, group: str) -> BaseModel:
    """Raises Problem."""
    config = asker.state.subscriptions.configured(group)
    if config is None:
        raise Problem(404, f"group {group!r} has no settings")
    asker.tag(config)
    return GroupSettingsView.model_validate({**msgspec.to_builtins(config), "group": group})
