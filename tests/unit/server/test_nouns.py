"""The settings of groups are declared once: options of commands and documents of HTTP follow."""

from __future__ import annotations

from typing import Any

import click
import msgspec
import pytest
from pydantic import ValidationError

from mqspark.broker.config import BrokerConfig
from mqspark.message import NEW_TOPIC_QUEUES, PERM_INHERIT, PERM_READ, PERM_WRITE
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark_server.actions.topicactions import CreateTopic
from mqspark_server.commands.administration.group_cli import group
from mqspark_server.commands.administration.topic_cli import topic
from mqspark_server.shown.nouns import GROUP_SETTINGS, PERMS, Setting, perm_text
from mqspark_server.web.v1.groupapi import GroupChange, GroupSettingsView


def option_of(setting: Setting) -> click.Parameter:
    command = group.commands["create"]
    return next(each for each in command.params if each.name == setting.field)


@pytest.mark.parametrize("setting", GROUP_SETTINGS, ids=lambda setting: setting.field)
def test_command_and_http_take_the_same_values(setting: Setting) -> None:
    names = {each.name: each.encode_name for each in msgspec.structs.fields(SubscriptionGroupConfig)}
    name, option = names[setting.field], option_of(setting)
    if setting.span is None:
        assert isinstance(option.type, click.types.BoolParamType)
        assert GroupChange.model_validate({name: True}).model_dump(exclude_none=True) == {setting.field: True}
        return
    assert isinstance(option.type, click.IntRange)
    assert (option.type.min, option.type.max) == setting.span
    for value in setting.span:
        assert GroupChange.model_validate({name: value}).model_dump(exclude_none=True) == {
            setting.field: value
        }
    for value in (setting.span.least - 1, setting.span.most + 1):
        with pytest.raises(ValidationError):
            GroupChange.model_validate({name: value})


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
