"""What a listener, a hook or a local transaction returns is awaited and understood, or is a failure: never a success by
mistake."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from mqspark.client.delivery.delivery import ConsumeStatus, Outcome, RetryLater, failure_of, make_delivery
from mqspark.client.delivery.process_queue import ProcessQueue
from mqspark.client.hooks.hooks import ConsumeContext, ConsumeKind, Intercepted, Interceptor, let_through

WAIT_S = 60


async def handle(argument: object) -> ConsumeStatus | None:
    await asyncio.sleep(0)
    if argument == "later":
        return ConsumeStatus.RECONSUME_LATER
    if argument == "raise":
        raise ValueError(argument)
    if argument == "exit":
        raise SystemExit(1)
    return None


def decorated(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that hides that the function is a coroutine function."""

    @functools.wraps(function)
    def call(argument: object) -> object:
        return function(argument)

    call.__wrapped__ = None  # type: ignore[attr-defined] # nor can it be found out
    return call


class Handler:
    async def __call__(self, argument: object) -> ConsumeStatus | None:
        return await handle(argument)

    async def method(self, argument: object) -> ConsumeStatus | None:
        return await handle(argument)


async def nested(argument: object) -> Any:
    return handle(argument)


def generator(argument: object) -> Iterator[None]:
    yield None


async def async_generator(argument: object) -> AsyncIterator[None]:
    yield None


async def outcome_of(
    listener: Callable[[Any], Any], argument: object = "", interceptors: tuple[Interceptor, ...] = ()
) -> Outcome:
    """The outcome of one call, which must be the same for a tool's direct one."""
    reported: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    around = [Intercepted(interceptors, "group", 1_000)] if interceptors else []
    delivery = make_delivery(
        listener,
        concurrency=2,
        finished=lambda ended: reported.set_result(next(ended)[2]),
        around=around,
    )
    delivery.submit(ProcessQueue(0), [argument])
    async with asyncio.timeout(WAIT_S):
        outcome = await reported
    assert await delivery.stop(WAIT_S * 1_000)
    return outcome


HIDDEN = {
    "a lambda": lambda argument: handle(argument),
    "a decorator": decorated(handle),
    "a partial function": functools.partial(decorated(handle)),
    "an object": Handler(),
    "a lambda around an object": lambda argument: Handler()(argument),
    "a method": Handler().method,
    "a coroutine of a coroutine": nested,
    "a lambda around that": lambda argument: nested(argument),
}


@pytest.mark.parametrize("name", HIDDEN)
async def test_a_hidden_coroutine_function_is_awaited(name: str) -> None:
    listener = HIDDEN[name]
    assert await outcome_of(listener) is None
    assert await outcome_of(listener, "later") is ConsumeStatus.RECONSUME_LATER
    assert isinstance(await outcome_of(listener, "raise"), ValueError)
    assert isinstance(await outcome_of(listener, "exit"), SystemExit)


ODD: dict[str, object] = {
    "False": False,
    "True": True,
    "a name": "RECONSUME_LATER",
    "a number": 0,
    "the class": RetryLater,
    "the enumeration": ConsumeStatus,
    "a list": [],
    "a future of a pool": concurrent.futures.Future(),
}


@pytest.mark.parametrize("name", ODD)
async def test_a_value_that_is_no_outcome_is_a_failure(name: str) -> None:
    async def listen(argument: object) -> object:
        return ODD[name]

    for listener in (lambda argument: ODD[name], listen):
        outcome = await outcome_of(listener)
        assert failure_of(outcome) is not None
        assert isinstance(outcome, TypeError)
        assert "counts as a failure" in str(outcome)


@pytest.mark.parametrize("listener", [generator, async_generator])
async def test_a_generator_is_no_listener(listener: Callable[[Any], Any]) -> None:
    assert isinstance(await outcome_of(listener), TypeError)


async def test_an_exception_that_is_returned_is_a_failure() -> None:
    error = ValueError("returned")
    assert await outcome_of(lambda argument: error) is error
    assert failure_of(error) is not None


@pytest.mark.parametrize(
    "returned", [None, ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.COMMIT, RetryLater(delay_level=3)]
)
async def test_an_outcome_is_what_it_says(returned: Outcome) -> None:
    assert await outcome_of(lambda argument: returned) is returned


class Noting(Interceptor):
    def __init__(self) -> None:
        self.kinds: list[ConsumeKind | None] = []

    def after_consume(self, context: ConsumeContext) -> None:
        self.kinds.append(context.kind)


async def test_interceptors_see_the_outcome_of_what_was_awaited() -> None:
    noting = Noting()
    for argument in ("", "later", "raise"):
        await outcome_of(lambda argument: handle(argument), argument, (noting,))
    await outcome_of(lambda argument: False, "", (noting,))
    expected = [ConsumeKind.SUCCESS, ConsumeKind.FAILED, ConsumeKind.EXCEPTION, ConsumeKind.EXCEPTION]
    assert noting.kinds == expected


async def test_a_tool_is_told_that_an_outcome_is_none() -> None:
    delivery = make_delivery(lambda argument: argument, concurrency=1, finished=lambda ended: None)
    assert await delivery.run_now(None) is None
    with pytest.raises(TypeError, match="counts as a failure"):
        await delivery.run_now(False)


class Unsure(Interceptor):
    """Its ``wanted`` forgets to return something, or is a coroutine function."""

    def __init__(self, answer: Callable[[], object]) -> None:
        self._answer = answer

    def wanted(self, message: object) -> bool:
        return self._answer()  # type: ignore[return-value] # what it is about


@pytest.mark.parametrize("answer", [lambda: None, lambda: handle("")], ids=["nothing", "a coroutine"])
def test_a_filter_that_does_not_answer_drops_nothing(
    answer: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    messages: list[Any] = [object()]
    assert let_through([Unsure(answer)], messages) == messages
    assert "True or False" in caplog.text


def test_a_hook_that_is_a_coroutine_function_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Late(Interceptor):
        async def before_consume(self, context: ConsumeContext) -> None:  # type: ignore[override]
            raise AssertionError("never called")

    Intercepted([Late()], "group", 1_000).begin([])
    assert "Late.before_consume is a plain function that returns nothing" in caplog.text
