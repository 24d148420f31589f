"""Every public method of every client, with arguments of every wrong type: the error names the argument, and no other
kind of error comes out. The methods and their arguments are read from the classes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import math
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import mqspark
from mqspark import aio
from mqspark.errors import ConfigError, InvalidMessage, MQError
from mqspark.message import MessageQueue
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.record.record import decode_record, encode_record
from tests.support.draws import some
from tests.support.scripted import Answer, Scripted, namesrv, served

KINDS = ("Producer", "TransactionProducer", "PushConsumer", "PopConsumer", "LitePullConsumer", "AdminClient")
QUEUE = MessageQueue("T", "a", 0)
WRONG: tuple[Any, ...] = (
    None, True, 5, -5, 1 << 64, 10**5_000, 1.5, math.nan, "x", "\ud800", b"x", object(), [], [None], ["\ud800"],
    {"a": None}, {None: "a"}, (), ("T", "a", 0), QUEUE,
    QUEUE._replace(queue_id="0"),  # type: ignore[arg-type]
    QUEUE._replace(topic=None),  # type: ignore[arg-type]
    QUEUE._replace(queue_id=1 << 40),
    lambda *arguments: None,
)  # fmt: skip
RIGHT: dict[str, Any] = {
    "queue": QUEUE,
    "queues": 4,
    "message": mqspark.Message.of("T", b"x"),
    "messages": [mqspark.Message.of("T", b"x")],
    "execute": lambda message: mqspark.aio.TransactionState.UNKNOWN,
    "check": lambda message: None,
    "request": decode_record(encode_record(topic="T", body=b"x")),
    "listener": lambda message: None,
    "settings": {"a": "b"},
    "what": "log",
    "writable": True,
    "offset": 0,
    "code": 28,
    "timestamp_ms": 0,
    "timeout_ms": 1,
    "address": "127.0.0.1:1",
    "message_id": "0" * 32,
    "mode": "POP",
}


def script(command: Command) -> Answer:
    if command.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        where = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"}
        return ResponseCode.PULL_NOT_FOUND, where, b""
    return 0, {"offset": "0", "msgId": "00" * 16, "queueId": "0", "queueOffset": "0"}, b"{}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    broker = Scripted(script)
    names = namesrv({"a": broker})
    with served(broker, names):
        yield names.address


def options_of(kind: str) -> dict[str, Any]:
    if kind == "AdminClient":
        return {"timeout_ms": 200}
    more: dict[str, Any] = {"group": "g", "instance_name": "wrong"}
    if kind in ("PushConsumer", "PopConsumer"):
        more["listener"] = lambda message: None
    if kind == "TransactionProducer":
        more |= {"check": lambda message: None, "execute": lambda message: None}
    return more


def parameters(function: Any) -> dict[str, Any]:
    """Name to type, of what is no setting."""
    hints = get_type_hints(inspect.unwrap(function))
    return {
        each.name: hints[each.name]
        for each in list(inspect.signature(inspect.unwrap(function)).parameters.values())[1:]
        if each.name in hints and each.kind is not inspect.Parameter.VAR_KEYWORD
    }


WITHIN = {"begin", "begin_batch", "can_begin", "end", "hand", "offer", "packed", "prepare", "stop_at_exit"}
"""What blocking clients call."""


def methods(kind: type) -> list[str]:
    return [
        name
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if name[0] != "_" and name not in WITHIN and parameters(function)
    ]


def is_far_from(value: Any, hint: Any) -> bool:
    """Whether the value is of another type without any doubt."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if hint is Any or Any in kinds or (isinstance(value, float) and float in kinds):
        return False
    if value is None:
        return type(None) not in kinds
    if isinstance(value, bool):
        return bool not in kinds
    if isinstance(value, int):
        return int not in kinds or abs(value) >= 1 << 63
    if isinstance(value, str):
        is_text = any(each is str or get_origin(each) is Literal for each in kinds)
        return not is_text or value == "\ud800"
    return isinstance(value, float) or type(value) is object


CALLS = [
    (where, kind, name)
    for where in (aio, mqspark)
    for kind in KINDS
    for name in ("__init__", *methods(getattr(where, kind)))
]


def calls_of(where: Any, kind: str, name: str) -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
    """Named arguments with one wrong value, its name, and the type that it should have."""
    function = getattr(getattr(where, kind), name)
    hints = parameters(function)
    signature = inspect.signature(inspect.unwrap(function)).parameters
    needed = {
        each: RIGHT.get(each, "T")
        for each in hints
        if signature[each].default is inspect.Parameter.empty
        and signature[each].kind is not inspect.Parameter.VAR_POSITIONAL
    }
    if name == "assign":
        needed["queues"] = [QUEUE]
    if name == "request":
        needed["timeout_ms"] = 20  # nobody replies
    for each, hint in hints.items():
        if (name, each) == ("__init__", "namesrv"):
            continue  # the start looks at it
        for value in WRONG:
            yield {**needed, each: value}, each, value, hint


def shown(value: Any) -> str:
    return "a huge number" if isinstance(value, int) and abs(value) > 1 << 64 else repr(value)[:40]


def check(error: BaseException | None, name: str, value: Any, hint: Any, what: str) -> None:
    assert error is None or isinstance(error, MQError), f"{what}: {name}={shown(value)}: {error!r}"
    if is_far_from(value, hint) and not (name == "hash_key" and value == 1 << 64):  # a digest is a key, too
        given = f"{what} takes {name}={shown(value)}: {error!r}"
        assert isinstance(error, (ConfigError, InvalidMessage)), given
        field = error.key if isinstance(error, ConfigError) else error.field
        assert field in (name, "topic or group") or (name == "message" and field == "body"), given


def outcome(call: Any) -> BaseException | None:
    try:
        found = call()
        if isinstance(found, concurrent.futures.Future):
            found.result(30)
    except Exception as error:
        return error
    return None


async def awaited(call: Any) -> BaseException | None:
    try:
        async with asyncio.timeout(30):
            found = call()
            if inspect.isawaitable(found):
                found = await found
                if isinstance(found, asyncio.Future):
                    await found
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize(
    ("where", "kind", "name"),
    some(CALLS, 64, several=True),
    ids=lambda value: value.__name__ if inspect.ismodule(value) else value,
)
def test_an_argument_of_another_type_is_refused_by_name(
    address: str, where: Any, kind: str, name: str
) -> None:
    what = f"{where.__name__}.{kind}.{name}"
    if name == "__init__":
        for arguments, each, value, hint in calls_of(where, kind, name):
            error = outcome(lambda: getattr(where, kind)(**{**options_of(kind), **arguments}))  # noqa: B023
            check(error, each, value, hint, what)
    elif where is aio:
        asyncio.run(all_on_a_loop(address, kind, name, what))
    else:
        client = getattr(where, kind)(address, **options_of(kind))
        prepare(client, kind)
        with client:
            for arguments, each, value, hint in calls_of(where, kind, name):
                if name != "stop" or is_far_from(value, hint):
                    error = outcome(lambda: positional(client, name, arguments))  # noqa: B023
                    check(error, each, value, hint, what)


async def all_on_a_loop(address: str, kind: str, name: str, what: str) -> None:
    client = getattr(aio, kind)(address, **options_of(kind))
    prepare(client, kind)
    async with client:
        for arguments, each, value, hint in calls_of(aio, kind, name):
            if name not in ("stop", "stop_at_exit") or is_far_from(value, hint):
                error = await awaited(lambda: positional(client, name, arguments))  # noqa: B023
                check(error, each, value, hint, what)


def positional(client: Any, name: str, arguments: dict[str, Any]) -> Any:
    """Call it with what it does not take by name in its place."""
    method = getattr(client, name)
    for each in inspect.signature(method).parameters.values():
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            return method(arguments[each.name])
    return method(**arguments)


def prepare(client: Any, kind: str) -> None:
    if kind in ("PushConsumer", "PopConsumer"):
        client.subscribe("T")
