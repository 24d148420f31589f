"""/api/v1/groups: list, describe, create, change and delete consumer groups, and reset their offsets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mqspark.auth.policies import Action
from mqspark.broker.admin.views import group_names, groups_view
from mqspark.errors import InvalidMessage, NoSuchTopic
from mqspark.message import check_group
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.admin_headers import DeleteSubscriptionGroupRequestHeader
from mqspark.protocol.headers.client_headers import ResetOffsetRequestHeader
from mqspark.protocol.slices import Work
from mqspark_server.shown.nouns import GROUP_SETTINGS, MAX_NAME, QUEUE_IDS
from mqspark_server.web.callers import CLUSTER
from mqspark_server.web.callers import group as group_named
from mqspark_server.web.callers import topic as topic_named
from mqspark_server.web.problems import Problem, as_problem
from mqspark_server.web.turns import between_turns
from mqspark_server.web.v1.asking import (
    ERRORS,
    After,
    Asker,
    AskerNow,
    GroupName,
    ItemPage,
    Limit,
    Prefix,
    check_match,
    entries_of,
    etag,
    page_after,
)
from mqspark_server.web.v1.documents import SettingsDocuments, given_by

router = APIRouter(prefix="/api/v1/groups", tags=["groups"], responses=ERRORS)


class QueueLag(BaseModel):
    queueId: int
    offset: int
    pullOffset: int | None
    maxOffset: int
    lag: int


class TopicLag(BaseModel):
    topic: str
    lag: int
    queues: list[QueueLag]


class Member(BaseModel):
    clientId: str
    address: str
    language: str
    version: int


class GroupView(BaseModel):
    group: str
    online: bool
    consumeType: str | None
    messageModel: str | None
    subscriptions: dict[str, str]
    members: list[Member]
    lag: int
    topics: list[TopicLag]


_SETTINGS = SettingsDocuments(SubscriptionGroupConfig, GROUP_SETTINGS)
GroupChange = _SETTINGS.change(
    "GroupChange",
    "Settings of a group. An absent field is unchanged; in a new group it has RocketMQ's default.",
)
GroupSettingsView = _SETTINGS.view("GroupSettingsView", group=str, attributes=dict[str, str])


class Reset(BaseModel):
    """The new offsets of a group in a topic."""

    model_config = ConfigDict(extra="forbid")

    topic: str = Field(min_length=1, max_length=MAX_NAME)
    to: Literal["earliest", "latest", "time", "offset"]
    timeMs: int | None = Field(default=None, ge=0, le=1 << 62, description="ms since 1970, for `time`")
    queueId: int | None = Field(
        default=None,
        ge=QUEUE_IDS.least,
        le=QUEUE_IDS.most,
        description="for `offset`; otherwise all queues move",
    )
    offset: int | None = Field(default=None, ge=0, le=1 << 62)
    dryRun: bool = Field(default=False, description="only report what would happen")


class QueueMove(BaseModel):
    queueId: int
    before: int | None = Field(description="null: the group has no offset yet")
    after: int
    minOffset: int
    maxOffset: int
    lagAfter: int


class ResetOutcome(BaseModel):
    group: str
    topic: str
    dryRun: bool
    online: bool = Field(description="whether members are connected, which continue from the new offsets")
    queues: list[QueueMove]


@router.get("")
async def list_groups(
    asker: AskerNow, limit: Limit = 100, after: After = None, prefix: Prefix = ""
) -> ItemPage[GroupView]:
    """Groups that have settings, members or offsets, in the order of their names."""
    asker.authorize(CLUSTER, Action.GET, Action.LIST)
    state = asker.state
    names = [name for name in group_names(state) if name.startswith(prefix)]
    page, following = page_after(names, after, limit)
    items = [GroupView(**entry) for entry in await entries_of(groups_view(state, page))]
    return ItemPage(items=items, next=following)


@router.get("/{group}")
async def describe_group(group: GroupName, asker: AskerNow) -> GroupView:
    """Its members, offsets and lag."""
    asker.authorize(group_named(group), Action.GET)
    found = await entries_of(groups_view(asker.state, [group]))
    if not found:
        raise Problem(404, f"no group {group!r}")
    return GroupView(**found[0])


@router.get("/{group}/settings", response_model=GroupSettingsView)
async def group_settings(group: GroupName, asker: AskerNow, response: Response) -> BaseModel:
    asker.authorize(group_named(group), Action.GET)
    return _settings_view(asker, group, response)


@router.put(
    "/{group}/settings",
    response_model=GroupSettingsView,
    responses={201: {"model": GroupSettingsView, "description": "made"}},
)
async def put_group(
    group: GroupName,
    settings: Annotated[dict[str, Any], Depends(given_by(GroupChange))],
    asker: AskerNow,
    request: Request,
    response: Response,
) -> BaseModel:
    """Create or change a group: with If-Match only if it is unchanged since it was read, with `If-None-Match: *` only
    if it is new."""
    with as_problem(400, InvalidMessage):
        check_group(group)
    old = asker.state.subscriptions.configured(group)
    check_match(request, None if old is None else etag(old))
    config = old or SubscriptionGroupConfig(group_name=group)
    # The attributes of a request are changes to the present ones.
    new = msgspec.structs.replace(config, attributes={}, **settings)
    await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(new))
    response.status_code = 201 if old is None else 200
    return _settings_view(asker, group, response)


@router.delete("/{group}", status_code=204)
async def delete_group(
    group: GroupName,
    asker: AskerNow,
    request: Request,
    cleanOffsets: bool = Query(default=False, description="delete its offsets, too"),
) -> None:
    """Delete the settings of a group."""
    config = asker.state.subscriptions.configured(group)
    if config is None:
        asker.authorize(group_named(group), Action.DELETE)
        raise Problem(404, f"group {group!r} has no settings")
    check_match(request, etag(config))
    header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=cleanOffsets)
    await asker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)


@router.post("/{group}/reset")
async def reset_group(group: GroupName, reset: Reset, asker: AskerNow) -> ResetOutcome:
    """Move a group to other offsets of a topic, forward or back, live members included."""
    asker.authorize(group_named(group), Action.GET, Action.UPDATE)
    asker.authorize(topic_named(reset.topic), Action.GET, Action.UPDATE)
    if (reset.to == "time") != (reset.timeMs is not None):
        raise Problem(422, "timeMs is required with `time`, and only allowed with it")
    if (reset.to == "offset") != (reset.offset is not None and reset.queueId is not None):
        raise Problem(422, "offset and queueId are required with `offset`, and only allowed with it")
    moves = await between_turns(_moves(asker, group, reset))
    if not reset.dryRun:
        header = ResetOffsetRequestHeader(group=group, topic=reset.topic, is_force=True)
        if reset.to == "offset":
            header = ResetOffsetRequestHeader(
                group=group,
                topic=reset.topic,
                queue_id=reset.queueId or 0,
                offset=reset.offset,
                is_force=True,
            )
        else:
            header.timestamp = {"earliest": 0, "latest": -1}.get(reset.to, reset.timeMs or 0)
        await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    online = asker.state.clients.consumer(group) is not None
    return ResetOutcome(group=group, topic=reset.topic, dryRun=reset.dryRun, online=online, queues=moves)


def _moves(asker: Asker, group: str, reset: Reset) -> Work[list[QueueMove]]:
    """Raises Problem."""
    state, topic = asker.state, asker.state.topics.get(reset.topic)
    if topic is None:
        raise Problem(404, str(NoSuchTopic(reset.topic)))
    if group not in state.subscriptions:
        raise Problem(404, f"no group {group!r}")
    queue_ids = range(topic.read_queue_nums) if reset.queueId is None else [reset.queueId]
    if reset.queueId is not None and reset.queueId >= topic.read_queue_nums:
        raise Problem(400, f"topic {topic.name} has no queue {reset.queueId}")
    store, moves = state.store, []
    for queue_id in queue_ids:
        low, high = store.offsets.bounds(topic.name, queue_id)
        if reset.offset is not None:
            target = reset.offset
            if not low <= target <= high:
                raise Problem(400, f"queue {queue_id} has the offsets {low} to {high}")
        elif reset.to == "latest":
            target = high
        else:
            target = store.offsets.offset_by_timestamp(topic.name, queue_id, reset.timeMs or 0)
        before = state.offsets.query(group, topic.name, queue_id)
        moves.append(
            QueueMove(
                queueId=queue_id,
                before=None if before < 0 else before,
                after=target,
                minOffset=low,
                maxOffset=high,
                lagAfter=max(0, high - target),
            )
        )
        yield
    return moves


def _settings_view(asker: Asker, group: str, response: Response) -> BaseModel:
    config = asker.state.subscriptions.configured(group)
    if config is None:
        raise Problem(404, f"group {group!r} has no settings")
    response.headers["ETag"] = etag(config)
    return GroupSettingsView.model_validate({**msgspec.to_builtins(config), "group": group})
