"""Messages sent again: dead letters, and what a replica has set aside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Literal

from mqspark.errors import InvalidMessage
from mqspark.message import Message, MessageExt, retry_topic
from mqspark_server.actions.operating import Act, Done, Operated, Preview
from mqspark_server.actions.resending import each_of_them, send_all
from mqspark_server.shown.deadletters import foreign_origins, origin_of, resent_copy
from mqspark_server.shown.setaside import Again

_NAMED = 20
_COLUMNS = {"origin_topic": "From topic", "message_id": "Message", "tags": "Tag", "keys": "Keys"}


async def copies_of(
    letters: Iterable[MessageExt], group: str, to: Literal["group", "topic"], consumed: Collection[str | None]
) -> AsyncIterator[tuple[MessageExt, Message | None, str]]:
    """Letters, their copies, and why one is not sent: "unreadable", "withoutOrigin" or "foreign", as HTTP counts them.
    ``consumed``: the topics from which they may come."""
    for letter in letters:
        copy, problem = None, "unreadable"
        with contextlib.suppress(InvalidMessage):
            copy = await asyncio.to_thread(resent_copy, letter, group, to)  # it may inflate the body
            is_foreign = origin_of(letter) not in consumed
            problem = "withoutOrigin" if copy is None else "foreign" if is_foreign else ""
        yield letter, copy, problem


class ResendLetters(Act, frozen=True):
    """``found``: those of the group that match ``words``. ``to``: the group alone, or the topics that they came from.
    Origins that the group does not consume and that are not ``origin`` are left out."""

    group: str
    found: Sequence[MessageExt]
    to: Literal["group", "topic"] = "group"
    origin: str | None = None
    words: str = "all"
    is_more: bool = False

    async def _consumed(self, at: Operated) -> set[str]:
        return {self.origin or "", *(await at.admin.consumed_topics(self.group) if self.found else ())}

    async def preview(self, at: Operated) -> Preview:
        foreign = foreign_origins(self.found, await self._consumed(at))
        where = f"group {self.group} alone" if self.to == "group" else "the topics that they came from"
        facts = [("Which", self.words), ("They go to", where)]
        if foreign:
            names = ", ".join(foreign[:_NAMED])
            facts.append(
                ("Not sent, for the group does not consume", f"{names}; by their topic they are sent")
            )
        if self.is_more:
            facts.append(("There are more", f"{len(self.found):,} are sent at once"))
        rows = [
            {
                "message_id": each.message_id,
                "origin_topic": (origin := origin_of(each)),
                "is_foreign": origin in foreign,
                "to": retry_topic(self.group) if origin and self.to == "group" else origin,
                "tags": each.tags,
                "keys": each.keys,
                "stored_ms": each.store_timestamp_ms,
            }
            for each in self.found
        ]
        title = f"Send {len(self.found):,} dead letters again?"
        return Preview(title, "Send again", facts, _COLUMNS, rows, is_dangerous=True)

    async def apply(self, at: Operated) -> Done:
        consumed = await self._consumed(at)

        async def copies() -> AsyncIterator[Message]:
            async for _, copy, problem in copies_of(self.found, self.group, self.to, consumed):
                if copy is not None and not problem:
                    yield copy

        sent = await send_all(at.producer(), copies())
        left = len(self.found) - sent
        reasons = "their origin is unknown, the group does not consume it, or their body cannot be read"
        return Done(
            f"dead letters sent again: {sent:,}", left=f"{left:,} were not sent: {reasons}" if left else ""
        )


class SendAgain(Act, frozen=True):
    """Messages of ``file`` that a replica has set aside, as new ones."""

    found: Again
    file: str

    async def preview(self, at: Operated) -> Preview:
        facts = [("From", self.file), ("Whether the cluster has them already", "is not known here")]
        if self.found.left_out:
            left = f"{self.found.left_out:,} of system and retry topics, or that cannot be read"
            facts.append(("Left out", left))
        rows = [{"topic": topic, "messages": number} for topic, number in self.found.counts.items()]
        columns = {"topic": "Topic", "messages": "#Messages"}
        title = f"Send {len(self.found.messages):,} messages again?"
        return Preview(title, "Send again", facts, columns, rows, is_dangerous=True)

    async def apply(self, at: Operated) -> Done:
        sent = await send_all(at.producer(), each_of_them(self.found.messages))
        return Done(f"messages sent again as new: {sent:,}")
