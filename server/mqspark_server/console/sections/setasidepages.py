"""The pages about parts of the log that this broker has set aside because its master's log differed: read, send again.

The files have messages of every topic and are read here, not asked of a broker. So with users they are for super users:
who may not see the users may not see them. The cluster judges who sends.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from mqspark.message import MessageExt
from mqspark.store.tools.diverged import SavedPart
from mqspark_server.actions.fields import Name, TopicName
from mqspark_server.actions.letteractions import SendAgain
from mqspark_server.actions.resending import MAX_SENT, MAX_SENT_BYTES
from mqspark_server.actions.useractions import accounts_of
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.rendering import message_row
from mqspark_server.console.site import ActionForm, Asking, Section, View
from mqspark_server.shown.nouns import WholeNumbers
from mqspark_server.shown.setaside import again, messages_in, parts_of
from mqspark_server.survey.surveying import Row

SHOWN = 100
"""Messages of one page."""
MAX_POSITION = (1 << 62) - 1


class OfPart(msgspec.Struct, frozen=True):
    broker: Name
    file: Name
    topic: TopicName = ""

    async def part(self, asked: Asking) -> SavedPart:
        """Raises Trouble, MQError, OSError."""
        if asked.visitor.has_users:
            await (await accounts_of(asked)).rows()  # refused to all but super users
        report = asked.report_of(self.broker)
        if report is None:
            where = "What a broker has set aside is on its own console, and in mqspark store diverged"
            raise Trouble(404, "Nothing to read here", f"{where}: this is not {self.broker}.")
        parts = await asyncio.to_thread(parts_of, Path(report["store"]["path"]))
        found = next((part for part in parts if part.path.name == self.file), None)
        if found is None:
            raise Trouble(404, "There is no such part", "It was removed, or never set aside by this broker.")
        return found


class SetAside(OfPart, View, frozen=True):
    start: Annotated[int, WholeNumbers(0, MAX_POSITION)] = msgspec.field(default=0, name="from")

    async def show(self, asked: Asking) -> Row:
        part = await self.part(asked)
        found = await asyncio.to_thread(self._read, part)
        return {
            "part": part,
            "rows": [
                {**message_row(each, "text"), "place": f"{each.topic} {each.queue_id} @ {each.queue_offset}"}
                for each in found[:SHOWN]
            ],
            "following": found[SHOWN].physical_offset if len(found) > SHOWN else None,
        }

    def _read(self, part: SavedPart) -> list[MessageExt]:
        """One more than a page shows. Blocking."""
        found = messages_in([part], self.topic or None)
        return list(islice((each for each in found if each.physical_offset >= self.start), SHOWN + 1))


class SendSetAside(OfPart, ActionForm, frozen=True):
    async def action(self, asked: Asking) -> SendAgain:
        messages = messages_in([await self.part(asked)], self.topic or None)
        found = await asyncio.to_thread(again, messages, MAX_SENT, MAX_SENT_BYTES)
        if found.is_more:
            most = f"At most {MAX_SENT:,} messages of {MAX_SENT_BYTES >> 20} MiB are sent at once"
            advice = "choose a topic, or use mqspark store diverged send."
            raise Trouble(400, "Too many messages", f"{most}: {advice}")
        if not found.messages:
            raise Trouble(404, "Nothing to send", "The part has no message that can be sent again.")
        return SendAgain(found, self.file)


_PATH = "/brokers/{broker}/set-aside/{file}"
SET_ASIDE_PAGES = Section(
    "Brokers", views={_PATH: (SetAside, "setaside.html")}, changes={f"{_PATH}/send": (SendSetAside, _PATH)}
)
