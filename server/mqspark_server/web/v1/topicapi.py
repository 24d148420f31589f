"""/api/v1/topics: list, describe, create, change and delete topics."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from mqspark.auth.policies import Action
from mqspark.broker.admin.views import extent_of, topics_view
from mqspark.errors import InvalidMessage, NoSuchTopic
from mqspark.message import check_topic
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.admin_headers import DeleteTopicRequestHeader
from mqspark.protocol.slices import Work
from mqspark_server.shown.nouns import TOPIC_SETTINGS
from mqspark_server.web.callers import CLUSTER
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
    entries_of,
)
from mqspark_server.web.v1.documents import SettingsDocuments, given_by

MAX_QUEUES_SHOWN = 10_000
"""Queues of all topics of one page; a page ends early after the topic that exceeds this number."""

_SEPARATORS = (",", "=")

router = APIRouter(prefix="/api/v1/topics", tags=["topics"], responses=ERRORS)


class QueueBounds(BaseModel):
    queueId: int
    minOffset: int
    maxOffset: int = Field(description="of the next message")


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


class TopicFigures(BaseModel):
    topic: str
    messagesStored: int = Field(description="in all queues now")
    messagesIn: int = Field(description="since the broker started")
    bytesIn: int
    putTps: float
    lastStored: int | None = Field(description="when the newest message was stored, ms since 1970")
    groups: list[str] = Field(description="groups with offsets in the topic, the first thousand")


@router.get("", response_model=ItemPage.__class_getitem__(TopicView))
async def list_topics(asker: AskerNow, paging: PagingNow, prefix: Prefix = "") -> ItemPage[BaseModel]:
    """Topics in the order of their names."""
    asker.authorize(CLUSTER, Action.GET, Action.LIST)
    state = asker.state
    page, following = paging.of_order(state.topics.names(), prefix)

    def collected() -> Work[tuple[list[dict[str, Any]], str | None]]:
        items: list[dict[str, Any]] = []
        shown = 0
        for name in page:
            for entry in topics_view(state, name):
                if entry is not None:
                    items.append(entry)
                    shown += len(entry["queues"])
                yield
            if shown > MAX_QUEUES_SHOWN and name != page[-1]:
                return items, cursor(name)
        return items, following

    items, following = await between_turns(collected())
    return ItemPage(items=[TopicView.model_validate(item) for item in items], next=following)


@router.get("/{topic}", response_model=TopicView)
async def describe_topic(topic: TopicName, asker: AskerNow) -> BaseModel:
    """Its settings and queues; the ETag is of the settings."""
    asker.authorize_topic(topic, Action.GET)
    return await _view(asker, topic)


@router.put(
    "/{topic}", response_model=TopicView, responses={201: {"model": TopicView, "description": "made"}}
)
async def put_topic(
    topic: TopicName, settings: Annotated[dict[str, Any], Depends(given_by(TopicChange))], asker: AskerNow
) -> BaseModel:
    """Create or change a topic: with If-Match only if it is unchanged since it was read, with `If-None-Match: *` only
    if it is new."""
    with as_problem(400, InvalidMessage):
        check_topic(topic)
    found = asker.state.topics.get(topic)
    old = None if found is None else found.config
    asker.check_match(old)
    number = asker.app.config.default_topic_queue_nums
    config = old or TopicConfig(topic_name=topic, read_queue_nums=number, write_queue_nums=number)
    attributes = _attribute_changes(settings.pop("attributes"))
    new = msgspec.structs.replace(config, **settings)
    header = new.creation(attributes=attributes)
    await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return await _view(asker, topic)


@router.delete("/{topic}", status_code=204)
async def delete_topic(topic: TopicName, asker: AskerNow) -> None:
    """Delete a topic with its messages."""
    if asker.state.topics.get(topic) is None:
        asker.authorize_topic(topic, Action.DELETE)
    asker.check_match(asker.topic(topic).config)
    await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=topic))


@router.get("/{topic}/stats")
async def topic_stats(topic: TopicName, asker: AskerNow) -> TopicFigures:
    """The number of messages in a topic, its incoming traffic, and the groups that read it."""
    asker.authorize_topic(topic, Action.GET)
    state, found = asker.state, asker.topic(topic)

    def reading() -> Work[list[str]]:
        groups: list[str] = []
        for number, (name, group) in enumerate(state.offsets.pairs()):
            if name == topic and len(groups) < 1_000:
                groups.append(group)
            if number % 1_000 == 0:
                yield
        return sorted(groups)

    stored, newest = await between_turns(extent_of(state, found))
    return TopicFigures(
        topic=topic,
        messagesStored=stored,
        messagesIn=found.put_count,
        bytesIn=found.put_bytes,
        putTps=state.stats.per_second("TOPIC_PUT_NUMS", topic),
        lastStored=newest,
        groups=await between_turns(reading()),
    )


async def _view(asker: Asker, topic: str) -> BaseModel:
    config = asker.topic(topic).config
    found = await entries_of(topics_view(asker.state, topic))
    if not found:
        raise Problem(404, str(NoSuchTopic(topic)))
    asker.tag(config)
    return TopicView.model_validate(found[0])


def _attribute_changes(attributes: dict[str, str | None]) -> str | None:
    """In RocketMQ's form: ``+name=value,-name``. Raises Problem."""
    words = []
    for name, value in attributes.items():
        if not name or any(mark in f"{name}{value or ''}" for mark in _SEPARATORS):
            raise Problem(422, f"the attribute {name[:100]!r} has a comma or an equals sign, or no name")
        words.append(f"-{name}" if value is None else f"+{name}={value}")
    return ",".join(words) or None
