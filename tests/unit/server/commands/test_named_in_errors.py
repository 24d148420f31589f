"""Errors show names whole, and advise nothing that cannot be done."""

from __future__ import annotations

import pytest

from mqspark.errors import InvalidMessage
from mqspark.message import check_group, check_topic, no_such_topic
from mqspark_server.commands.output import Column, Output
from mqspark_server.commands.refusals import Missing, MissingGroup, MissingTopic
from mqspark_server.shown.nouns import MAX_NAME

LONG = "%RETRY%" + "g" * (MAX_NAME - 8) + "x"


@pytest.mark.parametrize("name", ["a.b", "Orders.", "a b", "größe"])
def test_a_name_that_no_topic_can_have_is_named_and_not_to_be_created(name: str) -> None:
    for check in (check_topic, check_group):
        with pytest.raises(InvalidMessage) as refused:
            check(name)
        assert name in str(refused.value)
        assert "allowing only" in str(refused.value)
    missing = MissingTopic(name, []).message
    assert missing.startswith(f"there is no topic {name!r}: The specified topic contains illegal characters")
    assert "creates it" not in missing


def test_a_name_that_looks_like_another_is_advised() -> None:
    assert str(no_such_topic("a.b", ["a-b"])) == "there is no topic 'a.b'; did you mean 'a-b'?"
    assert str(no_such_topic("orders", ["Orders"])) == "there is no topic 'orders'; did you mean 'Orders'?"
    assert str(no_such_topic("%RETRY%billin", ["%RETRY%billing"])).endswith("did you mean '%RETRY%billing'?")
    assert str(no_such_topic("New")).endswith("mqspark topic create New creates it")


def test_the_longest_name_is_shown_whole() -> None:
    assert len(LONG) == MAX_NAME
    for error in (MissingTopic(LONG, []), MissingGroup(LONG, []), Missing("topic", LONG)):
        assert repr(LONG) in error.message
    (_, row) = Output().table([Column("topic", "TOPIC")], [{"topic": LONG}])
    assert row == LONG
