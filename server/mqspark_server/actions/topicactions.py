"""Topics: create, change, delete."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from mqspark.errors import InvalidMessage, NoRoute
from mqspark.message import MESSAGE_TYPES, NEW_TOPIC_QUEUES, is_system_topic
from mqspark_server.actions.fields import ChoiceField, SettingsField, TopicName
from mqspark_server.actions.operating import Act, Done, Facts, NotDone, Operated, Preview, Why
from mqspark_server.shown.nouns import TOPIC_SETTINGS, perm_words, settings_row
from mqspark_server.survey.brokersurvey import masters_of
from mqspark_server.survey.surveying import Row
from mqspark_server.survey.topicsurvey import PLAIN_TYPE, bounds_of, groups_of

if TYPE_CHECKING:
    from mqspark.protocol.bodies.topic_bodies import TopicConfig

_GROUPS_NAMED = 20


class PutTopic(Act, frozen=True, kw_only=True):
    """``settings``: some of TOPIC_SETTINGS, by their fields. ``brokers``: only these."""

    settings: Annotated[Mapping[str, Any], SettingsField(TOPIC_SETTINGS)] = msgspec.field(
        default_factory=dict
    )
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)
    brokers: Sequence[str] = ()


class CreateTopic(PutTopic, frozen=True, kw_only=True):
    title, button = "Create the topic {0.topic}?", "Create"
    topic: TopicName = msgspec.field(name="name")
    type: Annotated[str, ChoiceField(MESSAGE_TYPES)] = PLAIN_TYPE
    is_kept: bool = False
    """An existing one is no error."""

    @property
    def queues(self) -> int:
        return int(self.settings.get("read_queue_nums", NEW_TOPIC_QUEUES))

    async def _lacking(self, at: Operated) -> list[str]:
        """The brokers that do not have it. Raises NotDone."""
        there: set[str] = set()
        with contextlib.suppress(NoRoute):
            there = {*(await at.admin.topic_route(self.topic)).brokers}
        wanted = self.brokers or await masters_of(at.admin)
        if there.intersection(wanted) and not self.is_kept:
            raise NotDone(Why.EXISTS, f"topic {self.topic} exists already", noun="topic", name=self.topic)
        return [each for each in wanted if each not in there]

    async def facts(self, at: Operated) -> Facts:
        await self._lacking(at)
        return [("Queues", f"{self.queues} on each broker"), ("Type", self.type)]

    async def apply(self, at: Operated) -> Done:
        names = await self._lacking(at)
        if self.is_kept and not names:
            row = {"topic": self.topic, "queues": None, "brokers": names}
            return Done(f"topic {self.topic} exists already and is unchanged", row)
        attributes = dict(self.attributes)
        if self.type != PLAIN_TYPE:
            attributes["message.type"] = self.type
        given = {"queues": self.queues, **_arguments(self.settings)}
        await at.admin.create_topic(self.topic, **given, brokers=names, attributes=attributes)
        text = f"topic {self.topic} was created: {self.queues} queues on {', '.join(names)}"
        return Done(text, {"topic": self.topic, "queues": self.queues, "brokers": names})


class ConfigureTopic(PutTopic, frozen=True, kw_only=True):
    topic: TopicName

    async def _changes(self, at: Operated) -> dict[str, tuple[TopicConfig, TopicConfig]]:
        """By broker: its settings now, and then. Raises MQError."""
        route = await at.admin.topic_route(self.topic)
        found = {}
        for broker in self.brokers or sorted(route.brokers):
            if (address := route.master(broker)) is None:
                text = f"topic {self.topic} is at no master of {broker}: create it there first"
                raise NotDone(Why.NOT_POSSIBLE, text)
            old = await at.admin.topic_config(self.topic, address)
            found[broker] = old, msgspec.structs.replace(old, **self.settings)
        return found

    async def preview(self, at: Operated) -> Preview:
        changes = (await self._changes(at)).items()
        lost = [each for each, (old, new) in changes if new.read_queue_nums < old.read_queue_nums]
        facts = [("Messages of queues that are removed are not read", ", ".join(lost))] if lost else []
        rows = [{"broker": each, "now": _words(old), "then": _words(new)} for each, (old, new) in changes]
        columns = {"broker": "Broker", "now": "Read / write queues now", "then": "Then"}
        return Preview(f"Change {self.topic}?", "Change", facts, columns, rows, is_dangerous=bool(lost))

    async def apply(self, at: Operated) -> Done:
        changes = await self._changes(at)
        row: Row = {}
        for broker, (_, new) in changes.items():
            given = {each.field: getattr(new, each.field) for each in TOPIC_SETTINGS}
            await at.admin.create_topic(
                self.topic, **_arguments(given), brokers=[broker], attributes=self.attributes
            )
            row = {"topic": self.topic, "broker": broker, **settings_row(TOPIC_SETTINGS, new)}
        return Done(f"topic {self.topic} was changed on {', '.join(changes)}", row)


class DeleteTopic(Act, frozen=True):
    title, button, is_dangerous = "Delete {0.topic} with its messages?", "Delete", True
    done = "topic {0.topic} was deleted"
    topic: TopicName

    async def facts(self, at: Operated) -> Facts:
        if is_system_topic(self.topic):
            raise InvalidMessage(f"{self.topic} is a system topic; brokers need it", field="topic")
        bounds = await bounds_of(at.admin, self.topic)
        groups = await groups_of(at.admin, self.topic)
        return [
            ("Messages in it", f"{sum(high - low for low, high in bounds.values()):,}"),
            ("Queues", str(len(bounds))),
            ("Groups that consume it", ", ".join(groups[:_GROUPS_NAMED]) or "none"),
        ]

    async def act(self, at: Operated) -> Row:
        await at.admin.delete_topic(self.topic, cluster=at.cluster)
        return {"topic": self.topic, "deleted": True}


def _arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As ``AdminClient.create_topic`` calls them."""
    return {each.word: settings[each.field] for each in TOPIC_SETTINGS if each.field in settings}


def _words(config: TopicConfig) -> str:
    return f"{config.read_queue_nums} / {config.write_queue_nums}, {perm_words(config.perm)}"
