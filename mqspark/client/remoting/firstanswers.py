"""The rule of ``NameServers`` over blocking connections: what the first of several servers answers."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Sequence

from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.client.remoting.nameservers import NEXT_NAMESRV_S, weightiest
from mqspark.errors import ClientError, ConnectionLost, ProtocolError, RequestTimeout
from mqspark.protocol.command import Command, Fields

Answers = list[Command]
_Failure = ClientError | ProtocolError


class _Asked:
    """The requests that one server has been sent."""

    def __init__(
        self, connection: BlockingConnection, requests: Sequence[tuple[int, Fields]], timeout_ms: int
    ) -> None:
        self.connection = connection
        self._opaques = connection.send_all(requests)
        self._answers: dict[int, Command] = {}
        self._timeout_ms = timeout_ms
        now = time.monotonic()
        self.next_s = now + NEXT_NAMESRV_S
        """When the next one is asked, if nothing comes until then."""
        self.due_s = now + timeout_ms / 1000
        """When the next answer has to be whole."""

    def answers(self) -> Answers | None:
        """None: some are missing. Never waits. Raises ConnectionLost, RequestTimeout, ProtocolError."""
        is_heard = self.connection.receive_ready()
        found = self.connection.poll([each for each in self._opaques if each not in self._answers], 0.0)
        self._answers |= found
        if len(self._answers) == len(self._opaques):
            return [self._answers[each] for each in self._opaques]
        now = time.monotonic()
        if is_heard:
            self.next_s = now + NEXT_NAMESRV_S
        if found:
            self.due_s = now + self._timeout_ms / 1000
        if now >= self.due_s:
            raise RequestTimeout(self.connection.address, self._timeout_ms)
        return None


class FirstAnswers:
    """``connect`` opens a connection to an address within milliseconds, and ``check`` raises for answers that do not
    count. ``failed`` is told of those, and of servers that cannot be reached or are silent; it raises what the others
    would repeat."""

    def __init__(
        self,
        connect: Callable[[str, int], BlockingConnection],
        check: Callable[[str, Answers], None],
        failed: Callable[[str, _Failure], None],
    ) -> None:
        self._connect = connect
        self._check = check
        self._failed = failed
        self._asked: dict[str, _Asked] = {}
        self._failures: list[_Failure] = []

    def find(
        self, order: Sequence[str], requests: Sequence[tuple[int, Fields]], timeout_ms: int
    ) -> tuple[str, Answers]:
        """Who has answered all requests first, and how. Raises the weightiest failure."""
        left = list(order)
        newest = ""
        while left or self._asked:
            for address in list(self._asked):
                answers = self._answers(address)
                if answers is not None:
                    for other in self._asked.keys() - {address}:
                        self._failed(other, RequestTimeout(other, timeout_ms))
                    return address, answers
            one = self._asked.get(newest)
            if left and (one is None or time.monotonic() >= one.next_s):
                newest = left.pop(0)
                # The last one has all the time.
                within_ms = min(timeout_ms, int(NEXT_NAMESRV_S * 1000)) if left else timeout_ms
                self._ask(newest, requests, within_ms, timeout_ms)
            elif self._asked:
                dues = [each.due_s for each in self._asked.values()]
                self._wait(min([*dues, one.next_s] if left and one is not None else dues))
        raise weightiest(self._failures)

    def _ask(
        self, address: str, requests: Sequence[tuple[int, Fields]], within_ms: int, timeout_ms: int
    ) -> None:
        try:
            self._asked[address] = _Asked(self._connect(address, within_ms), requests, timeout_ms)
        except ConnectionLost as error:
            self._fail(address, error)

    def _answers(self, address: str) -> Answers | None:
        try:
            answers = self._asked[address].answers()
            if answers is not None:
                self._check(address, answers)
            return answers
        except (ClientError, ProtocolError) as error:
            del self._asked[address]
            self._fail(address, error)
            return None

    def _fail(self, address: str, error: _Failure) -> None:
        self._failures.append(error)
        self._failed(address, error)

    def _wait(self, until_s: float) -> None:
        """Until one of them has sent something."""
        poll = select.poll()
        for one in self._asked.values():
            poll.register(one.connection, select.POLLIN)
        poll.poll(math.ceil(max(0.0, until_s - time.monotonic()) * 1000))
