"""/api/v1/groups/{group}/members and /modes: who is in a group and what it does, and whether it pulls or pops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from mqspark.auth.policies import Action
from mqspark.base.document import Document
from mqspark.broker.admin.views import Member, member_view
from mqspark.errors import IllegalName, ProtocolError
from mqspark.protocol.bodies.admin_bodies import ConsumerRunningInfo
from mqspark.protocol.bodies.body import decode_body, encode_body, queue_of
from mqspark.protocol.bodies.client_bodies import SetMessageRequestModeRequestBody
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.client_headers import GetConsumerRunningInfoRequestHeader
from mqspark_server.shown.nouns import MAX_NAME, SHARED_QUEUES
from mqspark_server.survey.groupsurvey import modes_of
from mqspark_server.web.problems import Problem, as_problem
from mqspark_server.web.v1.asking import ERRORS, AskerNow, Given, GroupName, ItemPage, PagingNow

MAX_QUEUES = 4_096
MAX_PROPERTIES = 256
MAX_STACKS_LENGTH = 1 << 20

router = APIRouter(prefix="/api/v1/groups", tags=["groups"], responses=ERRORS)


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
    share_queues: int = field(
        metadata={"description": "of how many neighbours a consumer shares the queues; 0: of all"}
    )


class ModeChange(Given):
    topic: str = Field(min_length=1, max_length=MAX_NAME)
    mode: Literal["PULL", "POP"]
    shareQueues: Annotated[int, SHARED_QUEUES] = 0


class Modes(BaseModel):
    items: list[Mode] = Field(description="of topics with a set mode; elsewhere the broker's default applies")


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
            MemberQueue(
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                cached=each.cached_msg_count,
                committed=each.commit_offset,
                last_pull=each.last_pull_timestamp,
                last_consume=each.last_consume_timestamp,
            )
            for queue, each in [(queue_of(key), each) for key, each in info.mq_table.items()][:MAX_QUEUES]
        ]
    rates: dict[str, dict[str, float]] = {
        topic: {
            "pullTps": each.pull_tps,
            "pullMs": each.pull_rt,
            "consumedTps": each.consume_ok_tps,
            "failedTps": each.consume_failed_tps,
            "consumeMs": each.consume_rt,
        }
        for topic, each in info.status_table.items()
    }
    properties = dict(list(info.properties.items())[:MAX_PROPERTIES])
    text = None if info.jstack is None else info.jstack[:MAX_STACKS_LENGTH]
    return MemberState(clientId, properties, queues, rates, stacks=text)


@router.get("/{group}/modes")
async def show_modes(group: GroupName, asker: AskerNow) -> Modes:
    """How the group consumes its topics."""
    asker.authorize_group(group, Action.GET)
    answer = await asker.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    rows = modes_of(group, answer.body)
    return Modes(items=[Mode(each["topic"], each["mode"], each["share"]) for each in rows])


@router.put("/{group}/modes")
async def put_mode(group: GroupName, change: ModeChange, asker: AskerNow) -> Modes:
    """Set how the group consumes a topic. It applies to consumers that leave the mode to the broker."""
    body = SetMessageRequestModeRequestBody(
        topic=change.topic, consumer_group=group, mode=change.mode, pop_share_queue_num=change.shareQueues
    )
    await asker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode_body(body))
    return await show_modes(group, asker)
