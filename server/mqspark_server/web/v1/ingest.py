"""/api/v1/topics/{topic}/ingest: a body of lines, each a message. They become the batches of a producer."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from itertools import accumulate
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from mqspark.auth.policies import Action
from mqspark.base.propertystring import item
from mqspark.errors import InvalidMessage
from mqspark.message import WAIT, check_topic, encode_properties
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from mqspark.record.batchitems import encode_bodies
from mqspark_server.web.places import Places
from mqspark_server.web.problems import Problem, as_problem
from mqspark_server.web.v1.asking import ERRORS, Asker, AskerNow, QueueId, TopicName

INGEST_BYTES = 64 << 20
"""The most of one request's body."""
MAX_INGESTS = 8
"""At once."""
BATCH_BYTES = 256 << 10
"""The most of the lines in one batch, which the broker stores in one go: some milliseconds."""
BATCH_LINES = 4_096
"""The most lines of one batch: short lines cost the broker and its answer as much as long ones."""
IN_FLIGHT = 4
"""Batches of one request that wait for the disk at the same time."""

KINDS = ("application/x-ndjson", "application/octet-stream")
"""A browser sends none of them for a page of another site without a preflight request."""

router = APIRouter(prefix="/api/v1/topics", tags=["messages"], responses=ERRORS)
_PATH = re.compile(r"/api/v1/topics/[^/]+/ingest")


def is_ingest(path: str) -> bool:
    """A topic or user may have that name, too."""
    return _PATH.fullmatch(path) is not None


class Ingested(BaseModel):
    stored: int = Field(
        description="number of stored messages, as durable as the broker's flush type makes them"
    )


class Lines:
    """The lines of a body that arrives in pieces, without the empty ones."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begun = bytearray()
        self._whole: list[bytes] = []
        self._whole_bytes = 0

    def receive(self, data: bytes) -> list[list[bytes]]:
        """Batches of about BATCH_BYTES and at most BATCH_LINES. Raises Problem for a line that is too long."""
        first, *more = data.split(b"\n")
        self._begun += first
        if more:
            found = [bytes(self._begun), *more]
            self._begun = bytearray(found.pop())
            self._whole += filter(None, found)
            self._whole_bytes += sum(map(len, found))
            self._check(max(map(len, found)))
        self._check(len(self._begun))
        is_enough = self._whole_bytes >= BATCH_BYTES or len(self._whole) >= BATCH_LINES
        return self._batches() if is_enough else []

    def _check(self, size: int) -> None:
        if size > self._most_bytes:
            raise Problem(413, f"a line has more than {self._most_bytes} bytes")

    def finish(self) -> list[list[bytes]]:
        """What is left; the last line may lack its newline."""
        self._whole += filter(None, [bytes(self._begun)])
        return self._batches()

    def _batches(self) -> list[list[bytes]]:
        lines, self._whole, self._whole_bytes = self._whole, [], 0
        ends, batches, first = [*accumulate(map(len, lines))], [], 0
        while first < len(lines):
            fitting = bisect_right(ends, ends[first] - len(lines[first]) + BATCH_BYTES)
            last = max(first + 1, min(fitting, first + BATCH_LINES))
            batches.append(lines[first:last])
            first = last
        return batches


class _BatchesUnderWay:
    """The batches of one request that are in flight; the first that fails ends the request."""

    def __init__(self, asker: Asker, header: SendMessageRequestHeaderV2, properties: bytes) -> None:
        self._asker = asker
        self._header = header
        self._properties = properties
        self._under_way: list[tuple[asyncio.Task[object], int]] = []
        self.stored = 0
        """Messages of the first batches, all of which are acknowledged."""

    async def send(self, bodies: list[bytes]) -> None:
        """Raises Problem when an earlier batch has failed."""
        if len(self._under_way) >= IN_FLIGHT:
            await self._await_oldest()
        body = encode_bodies(bodies, self._properties)
        asked = self._asker.ask(RequestCode.SEND_BATCH_MESSAGE, self._header, body)
        self._under_way.append((asyncio.create_task(asked), len(bodies)))
        await asyncio.sleep(0)  # batches enter the log in their order, and others take their turn

    async def finish(self) -> None:
        while self._under_way:
            await self._await_oldest()

    async def _await_oldest(self) -> None:
        task, count = self._under_way.pop(0)
        await task
        self.stored += count

    async def end(self) -> None:
        """Wait for the batches in flight, and discard their results."""
        await asyncio.gather(*(task for task, _ in self._under_way), return_exceptions=True)
        self._under_way.clear()


@router.post(
    "/{topic}/ingest",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in KINDS},
        }
    },
)
async def ingest(
    topic: TopicName,
    request: Request,
    asker: AskerNow,
    tags: Annotated[str | None, Query(max_length=1_000, description="of every message")] = None,
    queueId: Annotated[
        QueueId | None, Query(description="the broker chooses for each batch when absent")
    ] = None,
) -> Ingested:
    """Store each line of the body as a message: up to 64 MiB a request, within half a minute. Empty lines are skipped.

    A problem's member `stored` says how many of the first lines are stored for certain; later ones may be.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in KINDS:
        raise Problem(415, f"the content type must be one of {', '.join(KINDS)}")
    with as_problem(400, InvalidMessage):
        check_topic(topic)
        properties = encode_properties({"TAGS": tags} if tags else {})
    asker.authorize_topic(topic, Action.PUB)  # who may not write holds no place, however slow the body is
    places: Places = request.app.state.ingests
    header = asker.sending(topic, item(WAIT, "true"), queue_id=queueId, batch=True)
    overhead = len(encode_bodies([b""], properties))
    lines = Lines(asker.app.store_config.max_message_size - overhead)
    sending = _BatchesUnderWay(asker, header, properties)
    place = places.take(asker.caller.user, asker.caller.address[0], MAX_INGESTS, retry_s=1)
    try:
        async for data in request.stream():
            for bodies in lines.receive(data):
                await sending.send(bodies)
        for bodies in lines.finish():
            await sending.send(bodies)
        await sending.finish()
    except Problem as problem:
        await sending.end()
        problem.more["stored"] = sending.stored
        raise
    except ClientDisconnect:
        await sending.end()
        raise Problem(400, "the body of the request is incomplete", stored=sending.stored) from None
    finally:
        place.leave()
    return Ingested(stored=sending.stored)
