"""Server-sent events: a response that lasts until its client disconnects, its source ends or its time is over.

Each event waits until the connection takes it; nothing is queued. A client that takes nothing for STUCK_S is
disconnected. What is no stream of events, but a file, is left without an end when its time is over, so that its client
knows that it is not whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from mqspark_server.process.tasks import end_all
from mqspark_server.web.httpguard import STREAMS
from mqspark_server.web.places import HeldPlace
from mqspark_server.web.problems import Problem

EVENTS = "text/event-stream"
STREAM_S = 600.0
"""The longest duration of one stream; browsers reconnect."""
STUCK_S = 30.0


def event(name: str, data: str) -> bytes:
    """``data``: one or more lines, each prefixed so that it cannot begin another event."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {name}\n{lines}\n".encode("utf-8", "replace")


class EventStream(Response):
    """``place`` is left however the stream ends. ``media_type`` and ``headers``: of what is no stream of
    events, but as long."""

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        place: HeldPlace,
        media_type: str = EVENTS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        kept = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(headers={**(headers or {}), **kept}, media_type=media_type)
        del self.headers["content-length"]
        self._source = source
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = scope.get("extensions", {}).get(STREAMS)
        if begin is not None:  # it is not there where no server listens
            begin()
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(self._wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, gone}, timeout=STREAM_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_all(sending, gone)
            await self._source.aclose()  # the task may have ended before it began
            self._place.leave()
        is_whole = not sending.cancelled() and sending.result()
        if not is_whole and self.media_type != EVENTS:
            return
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(STUCK_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> bool:
        """Whether all was sent."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async with contextlib.aclosing(self._source) as source:
                async for each in source:
                    async with asyncio.timeout(STUCK_S):
                        await send({"type": "http.response.body", "body": each, "more_body": True})
        except Problem as problem:
            text = json.dumps({"status": problem.status, "detail": problem.detail})
            await send({"type": "http.response.body", "body": event("problem", text), "more_body": True})
        except TimeoutError:
            return False
        return True

    @staticmethod
    async def _wait_for_disconnect(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
