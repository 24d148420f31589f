"""Answers to sends, held back until their guarantee is met.

Sends are stored in order, so their answers wait in order. One number, the log position up to which the store's
flush type is satisfied, releases all answers below it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from mqspark.base.clock import Clock
from mqspark.base.histogram import Histogram
from mqspark.broker.stats.puttimes import PutTimes
from mqspark.broker.stats.rpctimes import Rpc, RpcTimes
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_response
from mqspark.protocol.connection import MAX_ANSWER_HEADER_BYTES, Connection
from mqspark.protocol.dispatch import Refusal

SENT = Rpc(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, waited=False)


class Receiver(Protocol):
    """A session, or a wrapper around one."""

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None: ...


class AnswerRun(Struct, frozen=True, gc=False):
    """The answers to several messages of one sender, stored one after another."""

    messages: int
    frames: bytes
    """The success frames."""


class DirectRun:
    """Messages of one sender that is told without frames."""

    __slots__ = ()

    def send(self, buffer: bytes | memoryview, /, *more: bytes | memoryview) -> None:
        """Their guarantee is met."""
        raise NotImplementedError

    def failed(self, code: int, remark: str) -> None:
        """They are stored, but perhaps not as safely as asked for."""
        raise NotImplementedError


Waiting = tuple[int, Receiver, bytes | AnswerRun]
"""End offset in the log, receiver, and the success frame of one message or those of a run, whose offset is that of the
last one."""


class Acks:
    def __init__(self, clock: Clock, rpc: RpcTimes | None = None) -> None:
        """``rpc``: what also counts the waiting times, by request."""
        self._clock = clock
        self._rpc = RpcTimes(clock) if rpc is None else rpc
        self._sent: Histogram | None = None
        """The row of successful SEND_MESSAGE_V2, from the first one on."""
        self._others: dict[int, int] = {}
        """Request code → how many answers to it this turn has added; to SEND_MESSAGE_V2 are all the rest."""
        self.took_ms = 0
        """The longest wait of what the last ``release`` released."""
        self.times = PutTimes()
        """Waiting times of the released answers."""
        self.waiting: deque[Waiting] = deque()
        self.more = 0
        """Messages in ``waiting`` after the first of their run. To be looked at only."""
        self.unsafe: list[Waiting] = []
        """The same for messages whose senders wait only until they are written, not for the disk or slaves."""
        self._turns: deque[tuple[int, int, dict[int, int] | None]] = deque()
        """(end offset, monotonic ms, answers that are not to SEND_MESSAGE_V2 by request code) at the end of each turn
        that added something; many sends share one clock reading."""

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self.waiting) + self.more

    def add_run(
        self, end_offset: int, receiver: Receiver, messages: int, frames: bytes, *, waits: bool
    ) -> None:
        """``waits``: whether the sender waits for the disk and slaves."""
        item = end_offset, receiver, AnswerRun(messages, frames) if messages > 1 else frames
        if waits:
            self.waiting.append(item)
            self.more += messages - 1
        else:
            self.unsafe.append(item)

    def add_direct(self, end_offset: int, run: DirectRun, messages: int) -> None:
        """Messages whose sender waits for the disk and slaves."""
        self.waiting.append((end_offset, run, AnswerRun(messages, b"") if messages > 1 else b""))
        self.more += messages - 1

    @property
    def waited_ms(self) -> int:
        """How long the first answer waits."""
        return self._clock.monotonic_ms() - self._turns[0][1] if self._turns else 0

    def check_busy(self, capacity: int) -> None:
        """Raises Refusal when too many wait already."""
        if len(self) >= capacity:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {capacity} requests wait for the disk already; retry later",
            )

    def other(self, code: int, count: int = 1) -> None:
        """Answers were added that are not to SEND_MESSAGE_V2."""
        self._others[code] = self._others.get(code, 0) + count

    def end_turn(self) -> None:
        """Set the time of everything that has been added since the last call."""
        if not self.waiting:
            return
        end, turns, others = self.waiting[-1][0], self._turns, None
        if turns and turns[-1][0] >= end:
            return
        if self._others:
            others, self._others = self._others, {}
        turns.append((end, self._clock.monotonic_ms(), others))

    def release_unsafe(self, *, written: bool) -> None:
        """Send the answers of ``unsafe`` when their messages are written. Otherwise let them wait with the rest."""
        if written:
            count = 0
            for _, receiver, answer in self.unsafe:
                number, frames = _parts(answer)
                receiver.send(frames)
                count += number
            self._count(0, count, self._others)
            self._others = {}
            self.unsafe.clear()
        else:
            self._let_unsafe_wait()

    def _let_unsafe_wait(self) -> None:
        self.waiting.extend(self.unsafe)
        self.more += sum(answer.messages - 1 for _, _, answer in self.unsafe if isinstance(answer, AnswerRun))
        self.unsafe.clear()

    def release(self, acked: int) -> None:
        """Send the answers whose messages end at or before position ``acked`` of the log."""
        waiting, turns = self.waiting, self._turns
        if not waiting or waiting[0][0] > acked:
            return
        now_ms = self._clock.monotonic_ms()
        if len(waiting) == 1 and turns and turns[0][0] == waiting[0][0]:
            self._release_only_one(now_ms)
            return
        self.took_ms = 0
        last: Receiver = waiting[0][1]
        frames: list[bytes] = []
        while waiting and waiting[0][0] <= acked:
            turn_end, added_ms, others = turns.popleft() if turns else (acked, now_ms, None)
            end = turn_end if turn_end < acked else acked
            count = 0
            while waiting and waiting[0][0] <= end:
                _, receiver, answer = waiting.popleft()
                if receiver is not last:
                    last.send(*frames)
                    last, frames = receiver, []
                if isinstance(answer, AnswerRun):
                    count += answer.messages
                    self.more -= answer.messages - 1
                    answer = answer.frames
                else:
                    count += 1
                frames.append(answer)
            took_ms = now_ms - added_ms
            if took_ms > self.took_ms:
                self.took_ms = took_ms
            self.times.record(took_ms, count)
            if turn_end > acked:
                turns.appendleft((turn_end, added_ms, others))
                others = None
            self._count(took_ms, count, others)
        last.send(*frames)
        self._forget_turns()

    def _release_only_one(self, now_ms: int) -> None:
        """``release`` where one sender has sent: the usual turn of a broker that is not busy."""
        _, receiver, answer = self.waiting.popleft()
        _, added_ms, others = self._turns.popleft()
        count = 1
        if isinstance(answer, AnswerRun):
            count, answer = answer.messages, answer.frames
            self.more -= count - 1
        receiver.send(answer)
        self.took_ms = took_ms = now_ms - added_ms
        if took_ms or others or self._sent is None:
            self.times.record(took_ms, count)
            self._count(took_ms, count, others)
        else:
            self.times.quick += count
            self._sent.quick += count

    def _count(self, took_ms: int, count: int, others: dict[int, int] | None) -> None:
        """``others``: of the answers, those to other requests than SEND_MESSAGE_V2."""
        if others:
            for code, number in others.items():
                self._rpc.record(code, ResponseCode.SUCCESS, took_ms, number)
                count -= number
        if count > 0:
            sent = self._sent
            if sent is None:
                sent = self._sent = self._rpc.row(SENT)
            if took_ms:
                sent.record(took_ms, count)
            else:
                sent.quick += count

    def fail(self, remark: str) -> None:
        """The store accepted messages and could not keep its guarantee: answer all waiting sends with an error."""
        self._let_unsafe_wait()
        self._answer(None, ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def expire(self, timeout_ms: int, code: int, remark: str, *, up_to: int | None = None) -> None:
        """Answer sends that waited too long and end at or before ``up_to``: the message is stored, but perhaps
        not as safely as asked for."""
        oldest_ms = self._clock.monotonic_ms() - timeout_ms
        late = None
        for end_offset, added_ms, _ in self._turns:
            if added_ms > oldest_ms:
                break
            late = end_offset
        if late is not None:
            self._answer(late if up_to is None else min(late, up_to), code, remark)

    def _answer(self, up_to: int | None, code: int, remark: str) -> None:
        waiting = self.waiting
        while waiting and (up_to is None or waiting[0][0] <= up_to):
            _, session, answer = waiting.popleft()
            count, frames = _parts(answer)
            self.more -= count - 1
            if isinstance(session, DirectRun):
                session.failed(code, remark)
                continue
            # Rare, so the fields are parsed from the prepared frames instead of stored with them.
            self._rpc.record(RequestCode.SEND_MESSAGE_V2, code, 0, count)
            for success in Connection(max_header_bytes=MAX_ANSWER_HEADER_BYTES).receive_data(frames):
                session.send(encode_response(success.opaque, code, success.ext, remark=remark))
        self._forget_turns()

    def _forget_turns(self) -> None:
        first = self.waiting[0][0] if self.waiting else None
        while self._turns and (first is None or self._turns[0][0] < first):
            self._turns.popleft()


def _parts(answer: bytes | AnswerRun) -> tuple[int, bytes]:
    return (answer.messages, answer.frames) if isinstance(answer, AnswerRun) else (1, answer)


class Deferred:
    """Actions that run when the log is acked, or durable, up to a position; in the order of the positions."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Callable[[bool], None]]] = deque()
        """To be looked at only: every turn asks whether there are any."""

    def __len__(self) -> int:
        return len(self.waiting)

    def when(self, end_offset: int, action: Callable[[bool], None]) -> None:
        """Call ``action(True)`` when everything before ``end_offset`` is acked (durable), ``action(False)`` when
        it never will be. Offsets must not decrease."""
        self.waiting.append((end_offset, action))

    def release(self, position: int) -> None:
        waiting = self.waiting
        while waiting and waiting[0][0] <= position:
            waiting.popleft()[1](True)

    def fail(self) -> None:
        while self.waiting:
            self.waiting.popleft()[1](False)
