"""Fields of the console's forms: what they take, and that every page and change has those of its address."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
import pytest

from mqspark.errors import InvalidMessage
from mqspark_server.actions.fields import FormReader, GroupName, Line, ListField, Text, TopicName, fields_of
from mqspark_server.actions.useractions import PutUser
from mqspark_server.console.pages import SECTIONS
from mqspark_server.console.visitors import Form, sent_fields
from mqspark_server.shown.nouns import WholeNumbers


class Everything(msgspec.Struct, frozen=True):
    topic: TopicName
    group: GroupName = "none"
    line: Line = ""
    text: Text = ""
    count: Annotated[int, WholeNumbers(-1, 10)] = 3
    mode: Literal["PULL", "POP"] = "PULL"
    is_on: bool = False
    actions: Annotated[tuple[str, ...], ListField(("Get", "Sub"))] = ()
    start: Annotated[int, WholeNumbers(0, 9)] = msgspec.field(default=0, name="from")


def read(**fields: str | list[str]) -> Everything:
    given = {"topic": "Orders", **fields}.items()
    sent = [(name, each) for name, value in given for each in ([value] if isinstance(value, str) else value)]
    return FormReader(Everything).read(Form(sent))


def test_a_form_becomes_what_its_fields_say() -> None:
    assert read() == Everything("Orders")
    given = {
        "topic": " A ",
        "line": " l ",
        "text": " t\r\n",
        "count": " -1 ",
        "mode": "POP",
        "is_on": "1",
        "from": "7",
    }
    found = read(**given, actions=["Get", "Drop", "Sub"])
    assert found == Everything("A", "none", "l", " t\r\n", -1, "POP", True, ("Get", "Sub"), 7)


def test_a_blank_field_has_its_default_or_is_refused() -> None:
    assert read(count=" ", mode="", group="") == Everything("Orders")
    assert read(text=" ").text == " "  # as a password or a body may be
    with pytest.raises(InvalidMessage):
        read(topic=" ")
    with pytest.raises(InvalidMessage):
        FormReader(Everything).read(Form([]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "a b"),
        ("topic", "x" * 256),
        ("group", "<b>"),
        ("line", "x" * 256),
        ("count", "11"),
        ("count", "-2"),
        ("count", "--1"),
        ("count", "1.0"),
        ("count", "\N{FULLWIDTH DIGIT ONE}"),
        ("count", "9" * 5_000),
        ("mode", "pull"),
        ("from", "x"),
    ],
)
def test_what_a_field_may_not_be_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        read(**{name: value})
    assert refused.value.field == name


ROUTES = [
    (path, kind)
    for section in SECTIONS
    for path, (kind, _) in [*section.views.items(), *section.changes.items()]
]


@pytest.mark.parametrize(("path", "kind"), ROUTES, ids=lambda each: str(getattr(each, "__name__", each)))
def test_pages_and_changes_have_the_names_of_their_address(path: str, kind: Any) -> None:
    assert set(re.findall(r"\{(\w+)\}", path)) <= fields_of(kind).keys()
    FormReader(kind)


def test_a_password_is_not_in_a_repr() -> None:
    assert "hidden" not in repr(PutUser("a", "hidden"))


def test_no_field_of_a_form_replaces_a_name_of_its_address() -> None:
    class Sent:
        path_params = {"topic": "Orders"}  # noqa: RUF012 - a stand-in

    request: Any = Sent()
    assert FormReader(Everything).read(sent_fields(request, Form([("topic", "Other")]))).topic == "Orders"
