"""The settings of topics and groups are declared once: options of commands, documents of HTTP and forms follow."""

from __future__ import annotations

from typing import Any

import click
import msgspec
import pytest
from pydantic import BaseModel, ValidationError

from mqspark.broker.config import BrokerConfig
from mqspark.message import NEW_TOPIC_QUEUES, PERM_INHERIT, PERM_READ, PERM_WRITE
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicConfig
from mqspark_server.actions.topicactions import CreateTopic
from mqspark_server.commands.administration.group_cli import group
from mqspark_server.commands.administration.topic_cli import topic
from mqspark_server.console.rendering import _environment
from mqspark_server.shown.nouns import GROUP_SETTINGS, PERMS, TOPIC_SETTINGS, Setting, perm_text
from mqspark_server.web.v1.groupapi import GroupChange, GroupSettingsView
from mqspark_server.web.v1.topicapi import TopicChange

CASES = [
    pytest.param(setting, command, change, config, id=f"{command.name}-{setting.field}")
    for settings, command, change, config in (
        (GROUP_SETTINGS, group.commands["create"], GroupChange, SubscriptionGroupConfig),
        (TOPIC_SETTINGS, topic.commands["create"], TopicChange, TopicConfig),
        (TOPIC_SETTINGS, topic.commands["update"], TopicChange, TopicConfig),
    )
    for setting in settings
]


@pytest.mark.parametrize(("setting", "command", "change", "config"), CASES)
def test_command_and_http_take_the_same_values(
    setting: Setting, command: click.Command, change: type[BaseModel], config: type[msgspec.Struct]
) -> None:
    names = {each.name: each.encode_name for each in msgspec.structs.fields(config)}
    name = names[setting.field]
    option = next(each for each in command.params if each.name == setting.field)
    if setting.span is None:
        assert isinstance(option.type, click.types.BoolParamType)
        assert change.model_validate({name: True}).model_dump(exclude_unset=True) == {setting.field: True}
        return
    if setting.words is not None:
        assert isinstance(option.type, click.Choice)
        assert tuple(option.type.choices) == tuple(setting.words)
    else:
        assert isinstance(option.type, click.IntRange)
        assert (option.type.min, option.type.max) == setting.span
    for value in setting.span:
        given = change.model_validate({name: value})
        assert given.model_dump(exclude_unset=True) == {setting.field: value}
    for value in (setting.span.least - 1, setting.span.most + 1):
        with pytest.raises(ValidationError):
            change.model_validate({name: value})


@pytest.mark.parametrize("setting", [*GROUP_SETTINGS, *TOPIC_SETTINGS], ids=lambda setting: setting.field)
def test_a_page_asks_for_every_setting_within_its_limits(setting: Setting) -> None:
    value = PERM_READ if setting.labels else setting.span.most if setting.span else True
    source = '{% from "parts.html" import setting with context %}{{ setting(each, value) }}'
    shown = _environment().from_string(source).render(each=setting, value=value)
    assert f'name="{setting.word}"' in shown
    assert setting.label in shown
    if setting.labels:
        assert "<option selected>read only</option>" in shown
    elif setting.span:
        assert f'value="{value}"' in shown
        assert f'min="{setting.span.least}" max="{setting.span.most}"' in shown
    else:
        assert 'type="checkbox"' in shown


@pytest.mark.parametrize("given", [{"retry_max_times": 1}, {"brokerId": 1}, {"retryMaxTimes": "many"}])
def test_a_change_has_no_other_names_and_types(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GroupChange.model_validate(given)


def test_a_view_shows_what_others_have_set() -> None:
    config = SubscriptionGroupConfig(group_name="g", retry_max_times=1 << 30, retry_queue_nums=-4)
    shown = GroupSettingsView.model_validate({**msgspec.to_builtins(config), "group": "g"})
    document = shown.model_dump(by_alias=True)
    assert (document["group"], document["retryMaxTimes"], document["retryQueueNums"]) == ("g", 1 << 30, -4)
    assert len(document) == len(GROUP_SETTINGS) + 2


def test_permissions_have_the_bits_of_rocketmq() -> None:
    assert {text: perm_text(bits | PERM_INHERIT) for text, bits in PERMS.items()} == {
        text: text for text in PERMS
    }
    assert PERMS["rw"] == PERM_READ | PERM_WRITE


def test_a_new_topic_has_as_many_queues_by_every_face() -> None:
    by_command = {each.name: each.default for each in topic.commands["create"].params}["queues"]
    by_http = BrokerConfig().default_topic_queue_nums
    assert by_command == by_http == CreateTopic(topic="T").queues == NEW_TOPIC_QUEUES
