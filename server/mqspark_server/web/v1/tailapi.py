"""/api/v1/topics/{topic}/tail: messages as they arrive, as server-sent events.

A tail holds an offset of each queue and no messages: a message is read when the client is ready to take it. A tail that
falls behind skips messages, and reports how many. It ends when its client disconnects or loses its rights, and when the
broker stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from mqspark.auth.policies import Action
from mqspark_server.shown.messagerow import MessageView
from mqspark_server.web.events import EVENTS, EventStream, event
from mqspark_server.web.places import Places
from mqspark_server.web.v1.asking import ERRORS, Asker, AskerNow, TopicName
from mqspark_server.web.v1.storedmessages import Chosen, OfQueues, choose, read_some, views_of_stored

MAX_TAILS = 16
"""At once; each asks its queues ten times a second."""
MAX_BEHIND = 1_000
"""Messages of a queue. What is further behind is skipped."""
TAILS_AT_ONCE = 64
PAUSE_S = 0.1
QUEUES_A_PAUSE = 1_024
"""A tail of more queues pauses longer, and also while they grow: looking at all of them takes its time."""
CHECK_S = 5.0
"""Interval at which the rights of its client are checked again and a sign of life is sent."""

_MESSAGES = TypeAdapter(MessageView)
router = APIRouter(prefix="/api/v1/topics", tags=["messages"], responses=ERRORS)


@router.get("/{topic}/tail", response_class=Response, responses={200: {"content": {EVENTS: {}}}})
async def tail(
    topic: TopicName, request: Request, asker: AskerNow, asked: Annotated[OfQueues, Query()]
) -> Response:
    """Messages as they arrive, from now on: events `message` with the JSON of a message, `skipped` with the number of
    messages that a slow client did not get, and `problem` at the end of a tail that cannot go on. At most ten minutes:
    browsers then reconnect by themselves."""
    asker.authorize_topic(topic, Action.GET, Action.SUB)
    queue_ids = asked.queue_ids(asker.topic(topic))
    chosen = choose(asker, asked)
    places: Places = request.app.state.tails
    place = places.take(asker.caller.user, asker.caller.address[0], MAX_TAILS, retry_s=10)
    return EventStream(_arrivals(asker, topic, queue_ids, chosen), place)


async def _arrivals(
    asker: Asker, topic: str, queue_ids: range, chosen: Chosen
) -> AsyncGenerator[bytes, None]:
    store, loop = asker.state.store, asyncio.get_running_loop()
    places = {queue_id: store.offsets.max_offset(topic, queue_id) for queue_id in queue_ids}
    is_wide, pause_s = len(places) > QUEUES_A_PAUSE, PAUSE_S * max(1, len(places) / QUEUES_A_PAUSE)
    yield b": the newest comes first\n\n"
    checked = loop.time()
    while asker.app.lifecycle.ready:
        grown = [
            queue_id for queue_id in places if store.offsets.max_offset(topic, queue_id) != places[queue_id]
        ]
        if grown:
            asker.callers.check_in(asker.caller)
        for queue_id in grown:
            end = store.offsets.max_offset(topic, queue_id)
            place = min(places[queue_id], end)  # a topic that was deleted and created again
            if end - place > MAX_BEHIND:
                yield event("skipped", str(end - TAILS_AT_ONCE - place))
                place = end - TAILS_AT_ONCE
            found = await read_some(asker, topic, [(queue_id, place, end)], TAILS_AT_ONCE, chosen)
            shown, following = await views_of_stored(found, MessageView.of)
            for view in shown:
                asker.callers.check_in(asker.caller)  # a slow client may take long for each
                yield event("message", _MESSAGES.dump_json(view, by_alias=True).decode())
            places[queue_id] = end if following is None else following.offset
        if loop.time() - checked >= CHECK_S:
            checked = loop.time()
            asker.authorize_topic(topic, Action.GET, Action.SUB)
            asker.topic(topic)
            yield b": still here\n\n"
        if is_wide or not grown:
            await asyncio.sleep(pause_s)
