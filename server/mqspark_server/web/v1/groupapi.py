"""/api/v1/groups: list, describe, create, change and delete consumer groups, and reset their offsets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field, TypeAdapter

from mqspark.auth.policies import Action, Kind
from mqspark.base.document import Document
from mqspark.broker.admin.views import GroupView, group_names, groups_view
from mqspark.errors import InvalidMessage
from mqspark.message import MessageQueue, check_group
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.admin_headers import DeleteSubscriptionGroupRequestHeader
from mqspark.protocol.headers.client_headers import ResetOffsetRequestHeader
from mqspark.protocol.slices import Work
from mqspark_server.actions.groupactions import PutGroup, check_deletable
from mqspark_server.actions.offsetmoves import BEGINNING_MS, END_MS, OffsetMove, QueueMove
from mqspark_server.actions.operating import NotDone
from mqspark_server.shown.nouns import GROUP_SETTINGS, MAX_NAME, OFFSETS, QUEUE_IDS, place_of
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
    page_of,
)
from mqspark_server.web.v1.documents import SettingsDocuments, given_by

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
    to: Literal["earliest", "latest", "time", "offset"]
    timeMs: int | None = Field(default=None, ge=0, le=1 << 62, description="ms since 1970, for `time`")
    queueId: Annotated[int, QUEUE_IDS] | None = Field(
        default=None, description="only this queue moves; for `offset`, it must be given"
    )
    offset: Annotated[int, OFFSETS] | None = None
    dryRun: bool = Field(default=False, description="only report what would happen")


@dataclass(slots=True)
class ResetOutcome(Document):
    group: str
    topic: str
    dry_run: bool
    online: bool = field(
        metadata={"description": "whether members are connected, which continue from the new offsets"}
    )
    queues: list[QueueMove]


_GROUP = TypeAdapter(GroupView)


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


@router.put(
    "/{group}/settings",
    response_model=GroupSettingsView,
    responses={201: {"model": GroupSettingsView, "description": "made"}},
)
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
    if (reset.to == "time") != (reset.timeMs is not None):
        raise Problem(422, "timeMs is required with `time`, and only allowed with it")
    if (reset.to == "offset") != (reset.offset is not None and reset.queueId is not None):
        raise Problem(422, "offset and queueId are required with `offset`, and only allowed with it")
    asker.check_known(group)
    offsets = _BrokerOffsets(asker)
    at_ms = {"earliest": BEGINNING_MS, "latest": END_MS}.get(reset.to, reset.timeMs or 0)
    queues = [] if reset.queueId is None else [place_of(offsets.queue(reset.topic, reset.queueId))]
    move = OffsetMove(group, reset.topic, at_ms, reset.offset, queues)
    with as_problem(400, InvalidMessage):
        moves = [*(await move.moves(offsets)).values()]
    if not reset.dryRun:
        header = ResetOffsetRequestHeader(group=group, topic=reset.topic, timestamp=at_ms, is_force=True)
        if reset.queueId is not None:
            (only,) = moves
            header.queue_id, header.offset = only.queue_id, only.after
        await asker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    online = asker.state.clients.consumer(group) is not None
    return ResetOutcome(group, reset.topic, reset.dryRun, online=online, queues=moves)


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
