"""The pages about topics: list, create, queues, follow, send a message, configure, delete."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

from mqspark.errors import InvalidMessage
from mqspark.message import MAX_PROPERTIES_BYTES, Message
from mqspark_server.actions.fields import Line, LineField, Text, TopicName
from mqspark_server.actions.operating import Act, Done, Operated, Preview
from mqspark_server.actions.topicactions import ConfigureTopic, CreateTopic, DeleteTopic
from mqspark_server.console.site import Asking, ListView, Section, View
from mqspark_server.shown.nouns import WholeNumbers
from mqspark_server.survey import topicsurvey
from mqspark_server.survey.groupsurvey import lag_of
from mqspark_server.survey.surveying import MAX_ROWS, Row, add_to_each

GROUPS_SHOWN = 50
MAX_PROPERTIES = 64
LONGEST_DELAY_S = 365 * 86_400
_PropertyLine = Annotated[str, LineField(MAX_PROPERTIES_BYTES)]


class TopicTable(ListView, frozen=True):
    columns = (
        ("topic", "Topic"), ("kind", "Kind"), ("type", "Type"), ("queues", "#Queues"),
        ("messages", "#Messages"), ("in_tps", "#In/s"), ("last_ms", "Last message"),
        ("group_count", "Groups")
    )  # fmt: skip

    async def show(self, asked: Asking) -> Row:
        async def figures(row: Row) -> Row:
            return await topicsurvey.topic_figures(asked.admin, row["topic"])

        rows = await topicsurvey.topic_rows(asked.admin, every=self.every)
        return await self.listed("topic", rows, figures)


class TopicQueues(View, frozen=True):
    topic: TopicName

    async def show(self, asked: Asking) -> Row:
        queues = await topicsurvey.queue_rows(asked.admin, self.topic)
        groups = await topicsurvey.groups_of(asked.admin, self.topic)
        shown: list[Row] = [{"group": name} for name in groups[:GROUPS_SHOWN]]

        async def begin(row: Row) -> Row:
            place = self.topic, row["broker"], row["queue"]
            return {"first_ms": await topicsurvey.first_ms_of(asked.admin, *place)}

        async def lag(row: Row) -> Row:
            return {"lag": await lag_of(asked.admin, row["group"], self.topic)}

        # Without an answer, the span is shown without its begin.
        await add_to_each([row for row in queues[:MAX_ROWS] if row["messages"]], begin)
        await add_to_each(shown, lag)
        return {
            "queues": queues,
            "first_ms": min(filter(None, (row.get("first_ms") for row in queues)), default=None),
            "last_ms": max((row["last_ms"] for row in queues if row["last_ms"]), default=None),
            "groups": shown,
            "group_count": len(groups),
        }


class KnownTopic(View, frozen=True):
    """A page for a topic that is there, about which it asks nothing. ``tag``: of the messages that a tail shows."""

    topic: TopicName
    tag: Line = ""

    async def show(self, asked: Asking) -> Row:
        await asked.admin.topic_route(self.topic)
        return {}


class TopicConfiguration(View, frozen=True):
    topic: TopicName

    async def show(self, asked: Asking) -> Row:
        return {"configs": await topicsurvey.topic_settings(asked.admin, self.topic)}


class SendMessage(Act, frozen=True):
    topic: TopicName
    body: Text = ""
    encoding: Literal["text", "base64"] = "text"
    tag: _PropertyLine = ""
    keys: _PropertyLine = ""
    properties: Text = ""
    """NAME=VALUE, one a line."""
    delay: Annotated[int, WholeNumbers(1, LONGEST_DELAY_S)] = 0

    async def preview(self, at: Operated) -> Preview:
        message = self._message()
        facts = [("Topic", self.topic), ("Body", f"{len(message.body):,} bytes")]
        facts += [("Tag", message.tags or "none"), ("Keys", message.keys or "none")]
        facts += [each for each in message.properties.items() if each[0] not in ("TAGS", "KEYS")]
        return Preview(f"Send a message to {self.topic}?", "Send", facts)

    async def apply(self, at: Operated) -> Done:
        message = self._message()
        async with at.producer() as producer:
            sent = await producer.send(message)
        queue = sent.queue
        text = (
            f"message stored in queue {queue.queue_id} of {queue.broker_name} at offset {sent.queue_offset}"
        )
        return Done(text)

    def _message(self) -> Message:
        """Raises InvalidMessage."""
        properties: dict[str, str] = {}
        for line in filter(str.strip, self.properties.splitlines()):
            name, separator, value = line.partition("=")
            if not separator or not name.strip() or len(properties) >= MAX_PROPERTIES:
                raise InvalidMessage(
                    f"properties: NAME=VALUE, one a line, at most {MAX_PROPERTIES}", field="properties"
                )
            properties[name.strip()] = value.strip()
        return Message.of(
            self.topic,
            self._content(),
            tags=self.tag or None,
            keys=self.keys.split() or None,
            properties=properties,
            delay_ms=self.delay * 1_000 or None,
        )

    def _content(self) -> bytes:
        """Raises InvalidMessage."""
        if not self.body:
            raise InvalidMessage("the message has no body", field="body")
        if self.encoding == "text":
            return self.body.replace("\r\n", "\n").encode()  # browsers end lines with both
        try:
            return base64.b64decode("".join(self.body.split()), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidMessage("the body is not base64", field="body") from None


TOPIC_PAGES = Section(
    "Topics",
    views={
        "/topics": (TopicTable, "topics.html"),
        "/topics/{topic}": (TopicQueues, "topic.html"),
        "/topics/{topic}/live": (KnownTopic, "live.html"),
        "/topics/{topic}/send": (KnownTopic, "send.html"),
        "/topics/{topic}/config": (TopicConfiguration, "topicconfig.html"),
    },
    changes={
        "/topics": (CreateTopic, "/topics/{name}"),
        "/topics/{topic}/send": (SendMessage, "/topics/{topic}/messages"),
        "/topics/{topic}/config": (ConfigureTopic, "/topics/{topic}/config"),
        "/topics/{topic}/delete": (DeleteTopic, "/topics"),
    },
)
