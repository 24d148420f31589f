"""The pages about topics: list, create, queues, follow, send a message, configure, delete."""

from __future__ import annotations

import base64
import binascii
import contextlib
from typing import Annotated, Any, Literal

import msgspec

from mqspark.client.admin import AdminClient
from mqspark.errors import InvalidMessage, MQError
from mqspark.message import MAX_PROPERTIES_BYTES, MESSAGE_TYPES, NEW_TOPIC_QUEUES, Message
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.fields import ChoiceField, Line, LineField, Text, TopicName
from mqspark_server.console.rendering import PERM_WORDS, path_of, perm_words
from mqspark_server.console.site import Asking, Change, Confirmation, Done, ListView, Section, View
from mqspark_server.shown.nouns import PERMS, QUEUES, WholeNumbers
from mqspark_server.survey.groupsurvey import lag_of
from mqspark_server.survey.surveying import MAX_ROWS, Row, each_of
from mqspark_server.survey.topicsurvey import (
    bounds_of,
    first_ms_of,
    groups_of,
    queue_rows,
    topic_figures,
    topic_rows,
    topic_settings,
)

GROUPS_SHOWN = 50
MAX_PROPERTIES = 64
LONGEST_DELAY_S = 365 * 86_400
_PropertyLine = Annotated[str, LineField(MAX_PROPERTIES_BYTES)]
_QueueCount = Annotated[int, QUEUES]


class TopicTable(ListView, frozen=True):
    sortable = ("kind", "type", "queues", "messages", "in_tps", "group_count", "last_ms")

    async def show(self, asked: Asking) -> Row:
        async def fill(row: Row) -> None:
            row |= await topic_figures(asked.admin, row["topic"])

        rows = [row for row in await topic_rows(asked.admin) if self.every or row["kind"] == "normal"]
        return {
            **await self.listed("topic", rows, fill),
            "types": MESSAGE_TYPES,
            "most_queues": QUEUES.most,
            "new_queues": NEW_TOPIC_QUEUES,
        }


class TopicQueues(View, frozen=True):
    topic: TopicName

    async def show(self, asked: Asking) -> Row:
        queues = await queue_rows(asked.admin, self.topic)
        groups = await groups_of(asked.admin, self.topic)
        shown: list[Row] = [{"group": name} for name in groups[:GROUPS_SHOWN]]

        async def add_begin(row: Row) -> None:
            row["first_ms"] = None
            if row["messages"]:
                with contextlib.suppress(MQError):  # the span is shown without its begin
                    place = row["broker"], row["queue"]
                    row["first_ms"] = await first_ms_of(asked.admin, self.topic, *place)

        async def add_lag(row: Row) -> None:
            row["lag"] = await lag_of(asked.admin, row["group"], self.topic)

        await each_of(queues[:MAX_ROWS], add_begin)
        await each_of(shown, add_lag)
        return {
            "tab": "Queues",
            "topic": self.topic,
            "queues": queues[:MAX_ROWS],
            "queue_count": len(queues),
            "count": sum(row["messages"] for row in queues),
            "largest": max((row["messages"] for row in queues), default=0),
            "first_ms": min((row["first_ms"] for row in queues[:MAX_ROWS] if row["first_ms"]), default=None),
            "last_ms": max((row["last_ms"] for row in queues if row["last_ms"]), default=None),
            "groups": shown,
            "group_count": len(groups),
        }


class LiveTail(View, frozen=True):
    topic: TopicName
    tag: Line = ""

    async def show(self, asked: Asking) -> Row:
        await asked.admin.topic_route(self.topic)
        return {"tab": "Live tail", "topic": self.topic, "tag": self.tag}


class SendingForm(View, frozen=True):
    topic: TopicName

    async def show(self, asked: Asking) -> Row:
        await asked.admin.topic_route(self.topic)
        return {"tab": "Send", "topic": self.topic}


class TopicConfiguration(View, frozen=True):
    topic: TopicName

    async def show(self, asked: Asking) -> Row:
        settings = await topic_settings(asked.admin, self.topic)
        return {
            "tab": "Configuration",
            "topic": self.topic,
            "configs": settings,
            "most": QUEUES.most,
            "perms": PERM_WORDS,
        }


class TopicSettings(msgspec.Struct, frozen=True):
    read_queues: _QueueCount = NEW_TOPIC_QUEUES
    write_queues: _QueueCount = 0
    """0: as many as to read."""
    perm: Annotated[str, ChoiceField(tuple(PERM_WORDS))] = "read and write"
    order: bool = False

    @property
    def words(self) -> str:
        return f"{self.read_queues} / {self.write_queues or self.read_queues}, {self.perm}"

    async def put(self, admin: AdminClient, topic: str, **more: Any) -> None:
        await admin.create_topic(
            topic,
            read_queues=self.read_queues,
            write_queues=self.write_queues or self.read_queues,
            perm=PERMS[PERM_WORDS[self.perm]],
            order=self.order,
            **more,
        )


class CreateTopic(TopicSettings, Change, frozen=True, kw_only=True):
    name: TopicName
    type: Annotated[str, ChoiceField(MESSAGE_TYPES)] = "NORMAL"

    async def preview(self, asked: Asking) -> Confirmation:
        if self.name in await asked.admin.topic_list():
            raise Trouble(409, "This topic already exists", f"Change {self.name} on its own page.")
        facts = [("Name", self.name), ("Queues", f"{self.read_queues} on each broker"), ("Type", self.type)]
        return Confirmation(f"Create the topic {self.name}?", "Create", facts)

    async def apply(self, asked: Asking) -> Done:
        attributes = None if self.type == "NORMAL" else {"message.type": self.type}
        await self.put(asked.admin, self.name, attributes=attributes)
        return Done(f"Topic {self.name} was created.", path_of("topics", self.name))


class ConfigureTopic(TopicSettings, Change, frozen=True, kw_only=True):
    topic: TopicName

    async def preview(self, asked: Asking) -> Confirmation:
        rows: list[Any] = []
        for each in await topic_settings(asked.admin, self.topic):
            if each["error"]:
                raise Trouble(502, "A broker cannot be asked", f"{each['broker']}: {each['error']}")
            before = f"{each['read_queues']} / {each['write_queues']}, {perm_words(each['perm'])}"
            rows.append((each["broker"], before, self.words))
        columns = ("Broker", "Read / write queues now", "Then")
        return Confirmation(f"Change {self.topic}?", "Change", columns=columns, rows=rows)

    async def apply(self, asked: Asking) -> Done:
        route = await asked.admin.topic_route(self.topic)
        await self.put(asked.admin, self.topic, brokers=[*route.brokers])
        return Done(f"Topic {self.topic} was changed.", path_of("topics", self.topic, "config"))


class DeleteTopic(Change, frozen=True):
    topic: TopicName

    async def preview(self, asked: Asking) -> Confirmation:
        bounds = await bounds_of(asked.admin, self.topic)
        groups = await groups_of(asked.admin, self.topic)
        facts = [
            ("Messages in it", f"{sum(high - low for low, high in bounds.values()):,}"),
            ("Queues", str(len(bounds))),
            ("Groups that consume it", ", ".join(groups[:20]) or "none"),
        ]
        return Confirmation(f"Delete {self.topic} with its messages?", "Delete", facts, is_dangerous=True)

    async def apply(self, asked: Asking) -> Done:
        await asked.admin.delete_topic(self.topic)
        return Done(f"Topic {self.topic} was deleted.", path_of("topics"))


class SendMessage(Change, frozen=True):
    topic: TopicName
    body: Text = ""
    encoding: Literal["text", "base64"] = "text"
    tag: _PropertyLine = ""
    keys: _PropertyLine = ""
    properties: Text = ""
    """NAME=VALUE, one a line."""
    delay: Annotated[int, WholeNumbers(1, LONGEST_DELAY_S)] = 0

    async def preview(self, asked: Asking) -> Confirmation:
        message = self._message()
        facts = [("Topic", self.topic), ("Body", f"{len(message.body):,} bytes")]
        facts += [("Tag", message.tags or "none"), ("Keys", message.keys or "none")]
        facts += [each for each in message.properties.items() if each[0] not in ("TAGS", "KEYS")]
        return Confirmation(f"Send a message to {self.topic}?", "Send", facts)

    async def apply(self, asked: Asking) -> Done:
        message = self._message()
        async with asked.producer() as producer:
            sent = await producer.send(message)
        text = f"Stored in queue {sent.queue.queue_id} of {sent.queue.broker_name} at offset {sent.queue_offset}."
        return Done(text, path_of("topics", self.topic, "messages"))

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
        "/topics/{topic}/live": (LiveTail, "live.html"),
        "/topics/{topic}/send": (SendingForm, "send.html"),
        "/topics/{topic}/config": (TopicConfiguration, "topicconfig.html"),
    },
    changes={
        "/topics": CreateTopic,
        "/topics/{topic}/send": SendMessage,
        "/topics/{topic}/config": ConfigureTopic,
        "/topics/{topic}/delete": DeleteTopic,
    },
)
