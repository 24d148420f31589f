"""Values of other types are refused, and the error names the field: nothing is guessed, stored or committed by its
text or its truth."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import enum
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import mqspark
from mqspark import Message, aio
from mqspark.base.valuetypes import check_value
from mqspark.client.producer.outgoing import batch_of, check_head, check_way, properties_text
from mqspark.errors import ConfigError, InvalidMessage

ROOT = Path(__file__).parents[3]
SETTINGS = (
    mqspark.ClientOptions,
    mqspark.ProducerSettings,
    mqspark.PushConsumerSettings,
    mqspark.LitePullConsumerSettings,
    mqspark.PopConsumerSettings,
    mqspark.AutoBatch,
    mqspark.TlsSettings,
    mqspark.RetryLater,
)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, field.name) for kind in SETTINGS for field in dataclasses.fields(kind)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_setting_of_another_type_is_refused(kind: Any, name: str) -> None:
    for wrong in (object(), 1.5, b"3", {"a": 1}):
        with pytest.raises(ConfigError, match=name) as caught:
            kind(**{name: wrong})
        assert caught.value.key == name


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (mqspark.PushConsumerSettings, "auto_commit", "false"),
        (mqspark.PushConsumerSettings, "ordered", 1),
        (mqspark.LitePullConsumerSettings, "auto_commit", None),
        (mqspark.LitePullConsumerSettings, "message_model", 1),
        (mqspark.ProducerSettings, "retries", "3"),
        (mqspark.ProducerSettings, "retries", True),
        (mqspark.ProducerSettings, "send_timeout_ms", 3e3),
        (mqspark.ProducerSettings, "interceptors", [print]),
        (mqspark.ProducerSettings, "trace", "no"),
        (mqspark.ClientOptions, "heartbeat_v2", "true"),
        (mqspark.ClientOptions, "connect_timeout_ms", 0),
        (mqspark.ClientOptions, "credentials", True),
        (mqspark.PushConsumerSettings, "consume_from", "first"),
    ],
)
def test_a_setting_that_looks_right_is_refused(kind: Any, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        kind(**{name: value})
    assert caught.value.key == name


def test_starts_have_short_names() -> None:
    first = mqspark.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    for settings in (
        mqspark.PushConsumerSettings,
        mqspark.PopConsumerSettings,
        mqspark.LitePullConsumerSettings,
    ):
        assert settings(consume_from="earliest").consume_from is first
        assert (
            settings(consume_from="latest").consume_from is mqspark.ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        )
        assert settings(consume_from="CONSUME_FROM_FIRST_OFFSET").consume_from is first


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"properties": {"a": None}}, "a"),
        ({"properties": {"a": b"x"}}, "a"),
        ({"properties": {"a": 1}}, "a"),
        ({"properties": {1: "x"}}, "property name"),
        ({"properties": [("a", "b")]}, "properties"),
        ({"tags": 5}, "tags"),
        ({"tags": b"t"}, "tags"),
        ({"keys": 5}, "keys"),
        ({"keys": [1, 2]}, "keys"),
        ({"flag": "1"}, "flag"),
        ({"flag": 1 << 40}, "flag"),
        ({"flag": None}, "flag"),
        ({"delay_ms": "5"}, "delay_ms"),
        ({"delay_level": 1.0}, "delay_level"),
        ({"deliver_at_ms": True}, "deliver_at_ms"),
        ({"topic": None}, "topic"),
        ({"topic": b"T"}, "topic"),
        ({"body": None}, "body"),
        ({"body": 5}, "body"),
    ],
    ids=str,
)
def test_a_part_of_a_message_of_another_type_is_refused(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        mqspark.Message.of(**{"topic": "T", "body": b"x", **wrong})
    assert caught.value.field == field


@pytest.mark.parametrize("value", [None, b"x", 1, ["a"]])
def test_a_property_that_was_set_later_is_refused(value: Any) -> None:
    message = mqspark.Message("T", b"x")
    message.properties["a"] = value
    for send in (properties_text, lambda message: batch_of([message], 1_000)):
        with pytest.raises(InvalidMessage, match="the property a is text") as caught:
            send(message)
        assert caught.value.field == "a"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (mqspark.Message(5, b"x"), "topic"),  # type: ignore[arg-type]
        (mqspark.Message("T", b"x", flag="1"), "flag"),  # type: ignore[arg-type]
        (mqspark.Message("T", b"x", flag=1 << 40), "flag"),
        (mqspark.Message("T", b"x", properties=[]), "properties"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_that_was_built_by_hand_is_checked(message: mqspark.Message, field: str) -> None:
    for check in (check_head, lambda message: batch_of([message], 1_000)):
        with pytest.raises(InvalidMessage) as caught:
            check(message)
        assert caught.value.field == field


def test_a_text_that_is_an_enumeration_is_its_value() -> None:
    class Colour(str, enum.Enum):  # noqa: UP042 - older programs have such
        RED = "red"

    text, _ = properties_text(mqspark.Message("T", b"x", properties={"colour": Colour.RED}))
    assert "colour\x01red\x02" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue", "q"),
        ("queue", ("T", "b", 0)),
        ("hash_key", 1.5),
        ("hash_key", b"k"),
        ("hash_key", True),
        ("selector", "x"),
        ("timeout_ms", "5"),
        ("timeout_ms", 1.5),
    ],
)
def test_an_argument_of_a_send_of_another_type_is_refused(name: str, value: object) -> None:
    arguments: dict[str, Any] = {"queue": None, "hash_key": None, "selector": None, "timeout_ms": None}
    with pytest.raises(InvalidMessage) as caught:
        check_way(**{**arguments, name: value})
    assert caught.value.field == name


# --- types and help -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SETTINGS[:5], ids=lambda kind: kind.__name__)
def test_help_describes_each_field(kind: type) -> None:
    text = kind.__doc__ or ""
    for field in dataclasses.fields(kind):  # type: ignore[arg-type] # all are
        _, _, after = text.partition(f"\n\n{field.name}: ")
        assert after.splitlines()[1].startswith("    "), field.name
    assert "The limit of a whole send" in (mqspark.ProducerSettings.__doc__ or "")


def test_what_is_loaded_on_first_use_is_exported_for_type_checkers() -> None:
    """Pyright takes only ``X as X`` for an export where ``__all__`` is in a condition."""
    source = (ROOT / "datasource/pyspark_pymq/__init__.py").read_text()
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    exported = {each.name for node in imports for each in node.names if each.asname == each.name}
    lazy = ast.literal_eval(source.partition("_LAZY = ")[2].partition("\n}")[0] + "}")
    assert exported == {*lazy, "DefaultSource"}


@pytest.mark.parametrize("name", ["aio", "errors", "extensions"])
def test_a_part_needs_no_import_of_its_own(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(mqspark, name, raising=False)
    assert getattr(mqspark, name) is sys.modules[f"mqspark.{name}"]


def test_a_member_of_an_enumeration_is_a_number_as_its_value() -> None:
    """At once: ``in range`` would compare it with every number."""

    class Number(enum.IntEnum):
        SMALL = 3
        LARGE = 1 << 63

    check_value("code", Number.SMALL, int)
    check_value("codes", [Number.SMALL], Sequence[int] | None)
    with pytest.raises(ConfigError, match="does not fit into 64 bits"):
        check_value("code", Number.LARGE, int)


CLASSES = (
    aio.AdminClient,
    aio.Producer,
    aio.TransactionProducer,
    aio.PushConsumer,
    aio.PopConsumer,
    aio.LitePullConsumer,
)
ANY_NUMBER = {"timestamp_ms", "begin_ms", "end_ms", "perm", "code", "hash_key", "seek.offset"} | {
    "ask_schemas.version",
    "ask_schemas.schema_id",
}
"""Arguments for which the broker or the method itself says which numbers it takes."""
INSIDE = {"stop_at_exit", "take", "hand", "reset", "begin", "prepare"}
"""Methods that only other parts of the client call."""


def test_every_number_says_its_range() -> None:
    """``timeout_ms=-1`` and ``queues=0`` are mistakes of the caller's."""
    without = [
        f"{kind.__name__}.{method}.{name}"
        for kind in CLASSES
        for method, function in inspect.getmembers(kind, inspect.isfunction)
        if method not in INSIDE and (method[0] != "_" or method == "__init__")
        for name, hint in get_type_hints(function, include_extras=True).items()
        if int in (hint, *get_args(hint)) and name != "return" and not hasattr(hint, "__metadata__")
        if not {name, f"{method}.{name}"} & ANY_NUMBER
    ]
    assert without == []


@pytest.mark.parametrize(
    ("kind", "call", "key", "value"),
    [
        (aio.AdminClient, "create_topic", "queues", 0),
        (aio.AdminClient, "create_topic", "read_queues", -1),
        (aio.AdminClient, "messages_by_key", "max_messages", 0),
        (aio.Producer, "request", "timeout_ms", -1),
        (aio.LitePullConsumer, "poll", "timeout_ms", -1),
        (mqspark.AdminClient, "create_topic", "queues", 0),
        (mqspark.LitePullConsumer, "poll", "timeout_ms", -1),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_number_out_of_range_is_refused(kind: Any, call: str, key: str, value: int) -> None:
    async def work() -> None:
        answer = getattr(made, call)(*given, **more, **{key: value})
        if inspect.isawaitable(answer):
            await answer

    made = kind("127.0.0.1:9") if "Admin" in kind.__name__ else kind("127.0.0.1:9", group="g")
    first = {"send": Message("T", b""), "request": Message("T", b"")}
    given = [] if call in ("poll", "stop") else [first.get(call, "T")]
    more = {"key": "k"} if call == "messages_by_key" else {}
    with pytest.raises((ConfigError, InvalidMessage), match=f"{key}={value} ") as caught:
        asyncio.run(work())
    assert key in (getattr(caught.value, "key", ""), getattr(caught.value, "field", ""))


def test_a_send_refuses_a_negative_timeout() -> None:
    with pytest.raises(InvalidMessage, match="timeout_ms=-1 is negative") as caught:
        check_way(None, None, None, -1)
    assert caught.value.field == "timeout_ms"
