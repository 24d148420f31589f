"""Requests of this broker to other brokers, for requests of clients that need their answers (BrokerOuterAPI's
RpcClient).

A handler that needs other brokers is a *talk*: a generator that yields questions and gets answers. A talk without
questions costs no more than a call. The shell takes ``due`` and passes answers to ``answered`` or ``failed``.
Talks are bounded in number and in time.

Must not know sockets, nor what the questions are about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from operator import attrgetter
from typing import NamedTuple

from mqspark.base.bounded import BoundedSet, Ledger, weigh
from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.broker.config import BrokerConfig
from mqspark.errors import MQError, TableFull
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal, failure
from mqspark.protocol.session import Session

MAX_TALKS = 4_096
"""Talks that may wait for answers at the same time."""
MAX_QUESTIONS = 64
"""The most questions of one talk for a client: each remapping of a logic queue adds a broker to ask."""
_TALK_BYTES = 4_000

_log = sparing(__name__, lines=20)


class Question(NamedTuple):
    broker_name: str
    code: int
    ext: Mapping[str, str]
    any_replica: bool = False
    """Whether a slave may answer while there is no master."""


Talk = Generator[Question, Command, bytes | None]
"""Returns the answer to the client. A question without an answer raises Refusal (SYSTEM_ERROR) in it."""


class _OpenTalk:
    """A talk that waits for an answer."""

    __slots__ = ("asked", "command", "deadline_ms", "session", "size_bytes", "talk")

    def __init__(self, session: Session | None, command: Command | None, talk: Talk, size_bytes: int) -> None:
        self.session = session
        self.command = command
        self.talk = talk
        self.size_bytes = size_bytes
        self.deadline_ms = 0
        self.asked = 0


class Peers:
    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self.ledger = Ledger(
            "talksWithBrokers",
            Limit(config, "max_waiting_bytes"),
            "Peers._open",
            "Peers._due",
            most=MAX_TALKS,
        )
        self._talks: BoundedSet[_OpenTalk] = self.ledger.set(0, attrgetter("size_bytes"))
        self._open: dict[int, _OpenTalk] = {}
        """By the number of the question."""
        self._due: deque[tuple[int, Question]] = deque()
        self.unasked: Collection[object] = self._due
        """Questions for ``due``. To be looked at only: every turn asks whether there are any."""
        self._last = 0

    def talk(self, session: Session, command: Command, talk: Talk) -> bytes | None:
        """The outcome of a handler: the answer if no broker had to be asked, else None, and the answer is sent
        later. Raises what the talk raises, and Refusal (SYSTEM_BUSY) or TableFull when too many wait."""
        return self._begin(session, command, talk)

    def begin(self, talk: Talk) -> bool:
        """A talk of the broker itself. Its failure is logged; False: it failed at once."""
        try:
            self._begin(None, None, talk)
        except (MQError, OSError) as error:
            _log.warning("requests to other brokers failed: %s", error)
            return False
        return True

    def _begin(self, session: Session | None, command: Command | None, talk: Talk) -> bytes | None:
        try:
            question = next(talk)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # of a Talk
        size_bytes = _TALK_BYTES + (0 if command is None else len(command.body)) + weigh(dict(question.ext))
        waiting = _OpenTalk(session, command, talk, size_bytes)
        if len(self._open) >= MAX_TALKS or not self._talks.has_room_for(waiting, None):
            talk.close()
            raise Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {len(self._open)} requests wait for other brokers; retry later",
            )
        try:
            self._talks.add(waiting, session)
        except TableFull:
            talk.close()
            raise
        self._ask(waiting, question)
        return None

    def _ask(self, waiting: _OpenTalk, question: Question) -> None:
        self._last += 1
        waiting.asked += 1
        waiting.deadline_ms = self._clock.monotonic_ms() + self._config.forward_timeout
        self._open[self._last] = waiting
        self._due.append((self._last, question))

    # --- for the shell ---

    def due(self) -> list[tuple[int, Question]]:
        """Questions to ask now; each is returned once, with its number."""
        if not self._due:
            return []
        due = [entry for entry in self._due if entry[0] in self._open]
        self._due.clear()
        return due

    def answered(self, number: int, answer: Command) -> None:
        """Answers that come too late are dropped."""
        waiting = self._open.pop(number, None)
        if waiting is not None:
            self._go_on(waiting, lambda: waiting.talk.send(answer))

    def failed(self, number: int, reason: str) -> None:
        """The question has no answer."""
        waiting = self._open.pop(number, None)
        if waiting is not None:
            refusal = Refusal(ResponseCode.SYSTEM_ERROR, reason)
            self._go_on(waiting, lambda: waiting.talk.throw(refusal))

    def expire(self) -> None:
        """Fail the questions that wait for longer than forwardTimeout."""
        if not self._open:
            return
        now_ms = self._clock.monotonic_ms()
        for number in [key for key, waiting in self._open.items() if waiting.deadline_ms <= now_ms]:
            self.failed(number, f"the other broker did not answer in {self._config.forward_timeout} ms")

    def _go_on(self, waiting: _OpenTalk, step: Callable[[], Question]) -> None:
        session, command = waiting.session, waiting.command
        frame: bytes | None
        try:
            question = step()
            if session is None or waiting.asked < MAX_QUESTIONS:
                self._ask(waiting, question)
                return
            waiting.talk.close()
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"more than {MAX_QUESTIONS} questions to other brokers")
        except StopIteration as end:
            frame = end.value
        except Exception as error:
            if session is None or command is None:
                _log.warning("requests to other brokers failed: %s", error)
                frame = None
            else:
                frame = failure(session, command, error)
        del self._talks[waiting]
        if frame is not None and session is not None and command is not None and not command.is_oneway:
            session.send(frame)
