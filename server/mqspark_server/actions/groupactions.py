"""Consumer groups: create, change, delete, let them pull or pop, copy their offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from mqspark.errors import InvalidMessage
from mqspark.message import is_system_group
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark_server.actions.fields import GroupName, SettingsField, TopicName
from mqspark_server.actions.operating import Act, Done, Facts, NotDone, Operated, Preview, Why, absent
from mqspark_server.shown.nouns import GROUP_SETTINGS, SHARED_QUEUES, ModeName
from mqspark_server.survey.groupsurvey import lag_of, member_rows
from mqspark_server.survey.surveying import Row


class PutGroup(Act, frozen=True, kw_only=True):
    """Creates or changes it. ``settings``: some of GROUP_SETTINGS, by their fields."""

    group: GroupName
    settings: Annotated[Mapping[str, Any], SettingsField(GROUP_SETTINGS)] = msgspec.field(
        default_factory=dict
    )

    def config(self, old: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
        """The configuration to send to a broker. ``old``: the present one; None if there is no such group."""
        config = old or SubscriptionGroupConfig(group_name=self.group)
        # The attributes of a request are changes to the present ones.
        return msgspec.structs.replace(config, attributes={}, **self.settings)

    async def preview(self, at: Operated) -> Preview:
        old = (await at.admin.groups([self.group])).get(self.group) or SubscriptionGroupConfig()
        rows = [
            {"setting": each.label, "now": getattr(old, each.field), "then": self.settings[each.field]}
            for each in GROUP_SETTINGS
            if self.settings.get(each.field, now := getattr(old, each.field)) != now
        ]
        if not rows:
            raise NotDone(Why.UNCHANGED, "the settings already have these values")
        columns = {"setting": "Setting", "now": "Now", "then": "Then"}
        return Preview(f"Change {self.group}?", "Change", columns=columns, rows=rows)

    async def apply(self, at: Operated) -> Done:
        known = await at.admin.groups([self.group])
        config = self.config(known.get(self.group))
        await at.admin.create_group(self.group, cluster=at.cluster, config=config)
        is_new = self.group not in known
        verb = "was created" if is_new else "was changed" if self.settings else "exists already"
        return Done(f"group {self.group} {verb}", {"group": self.group, "created": is_new})


class CreateGroup(PutGroup, frozen=True, kw_only=True):
    group: GroupName = msgspec.field(name="name")

    async def preview(self, at: Operated) -> Preview:
        if self.group in await at.admin.groups([self.group]):
            raise NotDone(Why.EXISTS, f"group {self.group} exists already", noun="group", name=self.group)
        given = [each for each in GROUP_SETTINGS if each.field in self.settings]
        facts = [(each.label, str(self.settings[each.field])) for each in given]
        return Preview(f"Create the group {self.group}?", "Create", facts)


def check_deletable(group: str, *, is_online: bool) -> None:
    """Raises InvalidMessage, NotDone."""
    if is_system_group(group):
        raise InvalidMessage(f"{group} is one of the brokers' own groups", field="group")
    if is_online:
        raise NotDone(Why.NOT_POSSIBLE, f"group {group} has members online: stop them first")


class DeleteGroup(Act, frozen=True):
    title, button, is_dangerous = "Delete the group {0.group}?", "Delete", True
    done = "group {0.group} was deleted"
    group: GroupName
    keeps_offsets: bool = False

    async def facts(self, at: Operated) -> Facts:
        known = await at.admin.group_names()
        if self.group not in known:
            raise absent("consumer group", self.group, known)
        check_deletable(self.group, is_online=bool(await member_rows(at.admin, self.group)))
        return [
            ("Messages that it has not consumed", f"{await lag_of(at.admin, self.group) or 0:,}"),
            ("Its offsets", "stay" if self.keeps_offsets else "are deleted, too"),
        ]

    async def act(self, at: Operated) -> Row:
        await at.admin.delete_group(self.group, cluster=at.cluster, clean_offsets=not self.keeps_offsets)
        return {"group": self.group, "deleted": True}


class SetMode(Act, frozen=True):
    """``share``: with POP, of how many neighbours a consumer shares the queues; 0: of all."""

    title, button = "Let {0.group} consume {0.topic} by {0.mode}?", "Change"
    done = "group {0.group} consumes {0.topic} by {0.mode}"
    group: GroupName
    topic: TopicName
    mode: ModeName
    share: Annotated[int, SHARED_QUEUES] = 0

    async def act(self, at: Operated) -> None:
        await at.admin.topic_route(self.topic)  # refused for a topic that nobody knows
        await at.admin.set_consume_mode(
            self.topic, self.group, self.mode, share_queues=self.share, cluster=at.cluster
        )


class CloneOffsets(Act, frozen=True):
    title = "Replace the offsets of {0.target} in {0.topic} by those of {0.source}?"
    button, is_dangerous = "Replace", True
    done = "group {0.target} has the offsets of {0.source} in {0.topic}"
    source: GroupName
    target: GroupName
    topic: TopicName

    async def act(self, at: Operated) -> None:
        await at.admin.clone_offsets(self.source, self.target, self.topic)
