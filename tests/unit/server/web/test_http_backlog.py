"""Connections of HTTP that have stopped amid a read wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mqspark_server.web.pacedhttp import Backlog


class Stopped:
    def __init__(self, go_on: Callable[[], None]) -> None:
        self.go_on = go_on


def test_one_that_fails_does_not_end_the_turns_of_others() -> None:
    served: list[str] = []

    def failing() -> None:
        served.append("failing")
        raise ValueError

    async def serve() -> list[str]:
        loop, backlog, errors = asyncio.get_running_loop(), Backlog(), list[str]()
        loop.set_exception_handler(lambda _, context: errors.append(repr(context["exception"])))
        again = Stopped(lambda: served.append("again"))

        def stop_again() -> None:
            served.append("first")
            backlog.add(again, loop)

        for each in Stopped(stop_again), Stopped(failing), Stopped(lambda: served.append("last")):
            backlog.add(each, loop)
        for _ in range(6):
            await asyncio.sleep(0)
        backlog.add(Stopped(failing), loop)
        for _ in range(2):
            await asyncio.sleep(0)
        backlog.add(Stopped(lambda: served.append("later")), loop)
        for _ in range(2):
            await asyncio.sleep(0)
        return errors

    assert asyncio.run(serve()) == ["ValueError()", "ValueError()"]
    assert served == ["first", "failing", "last", "again", "failing", "later"]
