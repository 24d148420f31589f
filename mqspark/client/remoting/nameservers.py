"""In which order name servers are asked: whoever answered last, then the others in turn. They know the same, so the
first answer counts, and one that is frozen or cut off costs no more than ``NEXT_NAMESRV_S``, once."""

from __future__ import annotations

import asyncio
from asyncio.staggered import staggered_race
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from mqspark.base.logs import escaping
from mqspark.errors import ConnectionLost, RequestTimeout
from mqspark.protocol.codes import ResponseCode

log = escaping(__name__)

NEXT_NAMESRV_S: Final = 0.5
"""A name server that is silent for this long is frozen, cut off or slow. The next one is asked as well, long before a
send, whose time is running, is over."""
NOT_NOW: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY})
"""Answers of a name server that has just started (needWaitForService), has too much to do, or is about to stop."""

T = TypeVar("T")


class NameServers:
    def __init__(self, addresses: Iterable[str], first: int = 0) -> None:
        self._addresses = list(addresses)
        self._first = first

    @property
    def order(self) -> list[str]:
        """The current one, then the others."""
        return [*self._addresses[self._first :], *self._addresses[: self._first]]

    def prefer(self, address: str) -> None:
        self._first = self._addresses.index(address)

    async def first_answer(self, ask: Callable[[str], Awaitable[T]]) -> T:
        """What ``ask`` returns for one of the addresses. The others are asked in turn as well, each as soon as ``ask``
        has failed for the one before or was silent for ``NEXT_NAMESRV_S``; who answers first is the current one from
        then on.

        Raises what the last one raised, but rather what one has said than that others are away.
        """
        # An order of its own: what others find out meanwhile must not lead it past a server that it has not asked.
        order = self.order
        if len(order) == 1:  # without the tasks of a race, whose garbage is cyclic
            return await ask(order[0])
        answer: T | None
        answer, which, failures = await staggered_race([partial(ask, each) for each in order], NEXT_NAMESRV_S)
        if which is None:
            raise weightiest([each for each in failures if each is not None])
        if which:
            self.prefer(order[which])
            log.info("name server %s is asked from now on: %s has not answered", order[which], order[0])
        return answer

    async def all_answers(self, ask: Callable[[str], Awaitable[T]]) -> list[T]:
        """What ``ask`` returns for all of the addresses that answer, in their order; once one has, the others have
        ``NEXT_NAMESRV_S``. Raises as ``first_answer`` if none answers."""
        tasks = [asyncio.ensure_future(ask(each)) for each in self._addresses]
        try:
            waiting = set(tasks)
            while waiting and not any(_has_answer(each) for each in tasks):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                await asyncio.wait(waiting, timeout=NEXT_NAMESRV_S)
        finally:
            for each in tasks:
                each.cancel()
        answers = [each.result() for each in tasks if _has_answer(each)]
        if not answers:
            raise weightiest([each.exception() for each in tasks if each.done() and not each.cancelled()])
        return answers


def _has_answer(task: asyncio.Future[T]) -> bool:
    """Whether it has ended with one."""
    return task.done() and not task.cancelled() and task.exception() is None


def weightiest(failures: Sequence[BaseException | None]) -> BaseException:
    """What is raised when no name server answers."""
    given = [each for each in failures if each is not None]
    said = [each for each in given if not isinstance(each, (ConnectionLost, RequestTimeout))]
    return (said or given)[-1]
