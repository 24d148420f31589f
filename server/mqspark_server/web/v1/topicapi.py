"""/api/v1/topics: list, describe, create, change and delete topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from mqspark.auth.policies import Action, Kind
from mqspark.base.document import Document
from mqspark.broker.admin.views import QueueBounds, extent_of, queues_of
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.topics import Topic
from mqspark.errors import InvalidMessage, NoSuchTopic
from mqspark.message import check_topic
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.admin_headers import DeleteTopicRequestHeader
from mqspark.protocol.slices import Work
from mqspark_server.shown.nouns import TOPIC_SETTINGS
from mqspark_server.web.callers import CLUSTER, Subject
from mqspark_server.web.problems import Problem, as_problem
from mqspark_server.web.turns import between_turns
from mqspark_server.web.v1.asking import (
    ERRORS,
    Asker,
    AskerNow,
    ItemPage,
    PagingNow,
    Prefix,
    TopicName,
    cursor,
    making,
)
from mqspark_server.web.v1.documents import SettingsDocuments, given_by

MAX_QUEUES_SHOWN = 10_000
"""Queues of all topics of one page; a page ends early after the topic that exceeds this number."""

MAX_GROUPS_SHOWN = 1_000
_SEPARATORS = (",", "=")

router = APIRouter(prefix="/api/v1/topics", tags=["topics"], responses=ERRORS)


_SETTINGS = SettingsDocuments(TopicConfig, TOPIC_SETTINGS)
TopicView = _SETTINGS.view(
    "TopicView", topic=str, system=bool, attributes=dict[str, str], putTps=float, queues=list[QueueBounds]
)
TopicChange = _SETTINGS.change(
    "TopicChange",
    "Settings of a topic. An absent field is unchanged; in a new topic it has the broker's default.",
    attributes=(
        dict[str, str | None],
        Field(
            default_factory=dict,
            max_length=64,
            description="to set; null removes one (`message.type`, `cleanup.policy`)",
        ),
    ),
)


@dataclass(slots=True)
class TopicFigures(Document):
    topic: str
    messages_stored: int = field(metadata={"description": "in all queues now"})
    messages_in: int = field(metadata={"description": "since the broker started"})
    bytes_in: int
    put_tps: float
    last_stored: int | None = field(metadata={"description": "when the newest message came, ms since 1970"})
    groups: list[str] = field(metadata={"description": "with offsets in the topic, the first thousand"})


@router.get("", response_model=ItemPage.__class_getitem__(TopicView))
async def list_topics(asker: AskerNow, paging: PagingNow, prefix: Prefix = "") -> ItemPage[BaseModel]:
    """Topics in the order of their names."""
    asker.authorize(CLUSTER, Action.GET, Action.LIST)
    state = asker.state
    page, following = paging.of_order(state.topics.names(), prefix)

    def collected() -> Work[tuple[list[BaseModel], str | None]]:
        items: list[BaseModel] = []
        shown = 0
        for found in filter(None, map(state.topics.get, page)):
            queues = yield from queues_of(state, found)
            items.append(_view(state, found, queues))
            shown += len(queues)
            if shown > MAX_QUEUES_SHOWN and found.name != page[-1]:
                return items, cursor(found.name)
            yield
        return items, following

    items, following = await between_turns(collected())
    return ItemPage(items=items, next=following)


@router.get("/{topic}", response_model=TopicView)
async def describe_topic(topic: TopicName, asker: AskerNow) -> BaseModel:
    """Its settings and queues; the ETag is of the settings."""
    asker.authorize_topic(topic, Action.GET)
    return await _tagged(asker, topic)


@router.put("/{topic}", **making(TopicView))
async def put_topic(
    topic: TopicName, settings: Annotated[dict[str, Any], Depends(given_by(TopicChange))], asker: AskerNow
) -> BaseModel:
    """Create or change a topic: with If-Match only if it is unchanged since it was read, with `If-None-Match: *` only
    if it is new."""
    with as_problem(400, InvalidMessage):
        check_topic(topic)
    found = asker.state.topics.get(topic)
    old = None if found is None else found.config
    asker.check_match(old, Subject(Kind.TOPIC, topic), Action.CREATE)
    number = asker.app.config.default_topic_queue_nums
    config = old or TopicConfig(topic_name=topic, read_queue_nums=number, write_queue_nums=number)
    attributes = _attribute_changes(settings.pop("attributes"))
    new = msgspec.structs.replace(config, **settings)
    await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, new.creation(attributes=attributes))
    return await _tagged(asker, topic)


@router.delete("/{topic}", status_code=204)
async def delete_topic(topic: TopicName, asker: AskerNow) -> None:
    """Delete a topic with its messages."""
    found, subject = asker.state.topics.get(topic), Subject(Kind.TOPIC, topic)
    if found is None:
        raise asker.refusal(404, str(NoSuchTopic(topic)), subject, Action.DELETE)
    asker.check_match(found.config, subject, Action.DELETE)
    await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))


@router.get("/{topic}/stats")
async def topic_stats(topic: TopicName, asker: AskerNow) -> TopicFigures:
    """The number of messages in a topic, its incoming traffic, and the groups that read it."""
    asker.authorize_topic(topic, Action.GET)
    state, found = asker.state, asker.topic(topic)
    stored, newest = await between_turns(extent_of(state, found))
    groups = sorted(await between_turns(state.offsets.groups_of(topic)))[:MAX_GROUPS_SHOWN]
    rate = _put_tps(state, topic)
    return TopicFigures(topic, stored, found.put_count, found.put_bytes, rate, newest, groups)


async def _tagged(asker: Asker, topic: str) -> BaseModel:
    found = asker.topic(topic)
    asker.tag(found.config)
    return _view(asker.state, found, await between_turns(queues_of(asker.state, found)))


def _view(state: BrokerState, found: Topic, queues: list[QueueBounds]) -> BaseModel:
    more = {"topic": found.name, "system": state.topics.is_system(found.name), "queues": queues}
    settings = msgspec.to_builtins(found.config)
    return TopicView.model_validate(settings | more | {"putTps": _put_tps(state, found.name)})


def _put_tps(state: BrokerState, topic: str) -> float:
    return state.stats.per_second("TOPIC_PUT_NUMS", topic)


def _attribute_changes(attributes: dict[str, str | None]) -> str | None:
    """In RocketMQ's form: ``+name=value,-name``. Raises Problem."""
    words = []
    for name, value in attributes.items():
        if not name or any(mark in f"{name}{value or ''}" for mark in _SEPARATORS):
            raise Problem(422, f"the attribute {name[:100]!r} has a comma or an equals sign, or no name")
        words.append(f"-{name}" if value is None else f"+{name}={value}")
    return ",".join(words) or None
