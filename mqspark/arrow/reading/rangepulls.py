"""Ranges of queues over TCP. Several pulls of a queue are in flight, each starting where the previous one will probably
end. A gap is pulled again; an overlap is dropped by offset."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mqspark.arrow.cluster.cluster_queues import DataLoss
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.cluster.readtasks import LOG_BYTES, ReadTask
from mqspark.arrow.reading.openplaces import OpenPlaces
from mqspark.arrow.records.decode import Decoder
from mqspark.arrow.records.records import (
    QUEUE_OFFSET,
    Ints,
    Records,
    has_inner_batches,
    record_positions,
    unwrap_inner_batches,
)
from mqspark.base.logs import Outages, escaping
from mqspark.client.blocking import BlockingClient, is_final
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.client.remoting.pullanswers import check_offsets
from mqspark.errors import BrokerError, ConnectionLost, MQError, ProtocolError, RequestTimeout
from mqspark.message import LMQ_PREFIX, MessageQueue
from mqspark.protocol.codes import PULL_ANSWERS, RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    pull_header,
)

_MIN_PULLS_IN_FLIGHT, _MAX_PULLS_IN_FLIGHT = 6, 64
_BYTES_IN_FLIGHT = 4 << 20
"""With RocketMQ's 32 messages per pull this is usually 64 pulls; with bulk pulls it is fewer than the minimum."""
_PULL_MESSAGES, _PULL_BYTES = 16_384, 2 << 20
"""The requested limits; the broker applies its own limits, too."""
_BULK_BYTES = 128 << 10
"""An answer of this size was limited by bytes, not by messages."""
_PULL_TIMEOUT_MS = 10_000
_PAUSE_S = 0.5
_outages = Outages(escaping("mqspark.arrow"))
"""Outages of brokers, for all tasks of this process."""
_EMPTY_RETRIES = 50


class _MayBeElsewhere(Exception):
    """A replica lacks messages that its master, which is another one or away, may have."""


class _Answer(NamedTuple):
    """What a pull from ``first`` has brought: records of offsets before ``following``."""

    body: Any
    first: int
    following: int


def pulled_batches(
    task: ReadTask, address: str, wanted: QueueRange, decoder: Decoder, opened: OpenPlaces
) -> Iterator[pa.RecordBatch]:
    """Answers joined to about the size of a batch and decoded; rows outside the range or already seen are
    dropped. Raises ProtocolError, InvalidMessage for records that were not asked for."""
    answers: list[_Answer] = []
    size = 0
    done = wanted.start - 1
    for answer in _pull_answers(task, address, wanted, opened):
        answers.append(answer)
        size += len(answer.body)
        if size >= LOG_BYTES // 2:
            for batch, reached in _decoded(answers, done, wanted, decoder):
                done = reached
                yield batch
            answers, size = [], 0
    if answers:
        for batch, _ in _decoded(answers, done, wanted, decoder):
            yield batch


def _decoded(
    answers: list[_Answer], done: int, wanted: QueueRange, decoder: Decoder
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Batches, and the last offset seen."""
    joined = Records(answers[0].body if len(answers) == 1 else b"".join(each.body for each in answers))
    stored = record_positions(joined)
    is_batched = has_inner_batches(joined, stored)
    if is_batched and len(answers) > 1:  # unpacked records do not show whose answer they are of
        for answer in answers:
            for batch, reached in _decoded([answer], done, wanted, decoder):
                done = reached
                yield batch, reached
        return
    for records, positions in unwrap_inner_batches(
        joined, stored, strict=decoder.strict, limits=decoder.limits
    ):
        offsets = records.longs(positions + QUEUE_OFFSET)
        if not wanted.queue.topic.startswith(LMQ_PREFIX):  # its records have offsets of other queues
            _check_offsets(wanted.queue, answers, positions, offsets, is_batched=is_batched)
        highest = np.maximum.accumulate(np.append(done, offsets))
        keep = (offsets > highest[:-1]) & (offsets < wanted.end)
        done = int(highest[-1])
        for batch in decoder.batches(records, positions if keep.all() else positions[keep]):
            yield batch, done


def _check_offsets(
    queue: MessageQueue, answers: list[_Answer], positions: Ints, offsets: Ints, *, is_batched: bool
) -> None:
    """Raises ProtocolError unless the offsets of each answer ascend between what it was asked for and what it says to
    go on at: one that is too large would hide all behind it. The first may be of an inner batch that begins before."""
    ends = np.cumsum([len(each.body) for each in answers])
    number = (
        np.searchsorted(ends, positions, "right") if not is_batched else np.zeros(len(positions), np.int64)
    )
    first = np.array([each.first for each in answers])[number]
    following = np.array([each.following for each in answers])[number]
    last = np.append(-1, np.where(number[1:] == number[:-1], offsets[:-1], -1))
    odd = (offsets <= last) | (offsets >= following)
    if not is_batched:
        odd |= offsets < first
    for place in np.flatnonzero(odd).tolist():
        raise ProtocolError(
            f"the broker of {queue} sends offset {offsets[place]} after {max(last[place], first[place])} and before "
            f"{following[place]}"
        )


def _pull_answers(task: ReadTask, address: str, wanted: QueueRange, opened: OpenPlaces) -> Iterator[_Answer]:
    """Raises the last failure when the broker gives nothing for ``retryTimeout``; a master is waited for as long."""
    puller = _Puller(task, address, wanted, opened)
    retry_s = task.retry_timeout_ms / 1000
    failing_since: float | None = None
    system_errors = 0
    broker = task.nameserver, wanted.queue.broker_name
    while puller.position < wanted.end:
        before = puller.position
        try:
            for answer in puller.answers():
                _outages.over(broker, "broker %s is pulled from again", wanted.queue.broker_name)
                yield answer
        except (ConnectionLost, RequestTimeout, BrokerError, _MayBeElsewhere) as error:
            now = time.monotonic()
            if puller.position > before or failing_since is None:
                failing_since, system_errors = now, 0
            if isinstance(error, BrokerError):
                system_errors += error.code == ResponseCode.SYSTEM_ERROR
                if is_final(error, system_errors):
                    raise
            left_s = failing_since + retry_s - now
            if left_s <= 0:
                if isinstance(error, _MayBeElsewhere):
                    puller.believe_replica()
                    continue
                error.add_note(f"Nothing could be pulled for retryTimeout ({retry_s:.0f} s).")
                raise
            what = "%s; pulling again, for %.0f s more (retryTimeout)"
            _outages.failed(broker, None, what, error, left_s)
            puller.reset(_master_of(task, wanted.queue))
            time.sleep(min(_PAUSE_S, left_s))


def _master_of(task: ReadTask, queue: MessageQueue) -> str | None:
    """The address of the master after a failover; None if no name server knows one."""
    if not task.nameserver:
        return None
    with closing(BlockingClient(task.nameserver, credentials=task.signing.credentials())) as client:
        return client.master_of(queue.broker_name, queue.topic)


class _Puller:
    """Pulls of one range over one connection. ``position``: everything before it has been returned."""

    def __init__(self, task: ReadTask, address: str, wanted: QueueRange, opened: OpenPlaces) -> None:
        self.position = wanted.start
        self._task = task
        self._opened = opened
        self._address = address
        self._credentials = task.signing.credentials()
        self._queue = wanted.queue
        self._end = wanted.end
        self._expression = task.sql_filter or " || ".join(task.tags) or "*"
        self._is_filtered = bool(task.sql_filter or task.tags)
        self._in_flight: deque[tuple[int, int, int]] = deque()
        """(opaque, first offset, the offset that it will probably reach)."""
        self._asked = wanted.start
        self._stride = 0
        """How many messages the broker returns at once; 0 while unknown."""
        self._answer_bytes = self._largest_bytes = 0
        """Size of the last answer, and of the largest."""
        self._empty = 0
        self._believes_replica = not task.nameserver

    def believe_replica(self) -> None:
        """Take the word of any replica: no master comes back."""
        self._believes_replica = True
        self.reset(None)

    def reset(self, address: str | None) -> None:
        """Begin again after a failure, at this address if it is given."""
        self._in_flight.clear()
        self._asked = self.position
        self._empty = 0
        self._opened.forget(self._address, self._credentials)
        self._address = address or self._address

    def answers(self) -> Iterator[_Answer]:
        connection = self._opened.connection(self._address, self._credentials)
        while self.position < self._end:
            self._ask_on(connection)
            if not self._in_flight:
                self._asked = self.position
                continue
            opaque, first, reach = self._in_flight.popleft()
            answer = connection.wait(opaque, _PULL_TIMEOUT_MS, if_silent=self._leave_replaced)
            if reach <= self.position:
                continue
            following = self._following(answer, first)
            if answer.code == ResponseCode.SUCCESS and following > first:
                self._learn(following - first, reach - first, len(answer.body))
                self._empty = 0
            self.position = max(self.position, min(following, self._end))
            if self.position < reach:
                self._ask_first(connection, self.position, reach)
            self._asked = max(self._asked, self.position)
            if answer.code == ResponseCode.SUCCESS and len(answer.body):
                yield _Answer(answer.body, first, following)

    def _leave_replaced(self, address: str) -> None:
        """Raises ConnectionLost if another broker is the master now: one that is frozen or cut off ends no
        connection."""
        master = _master_of(self._task, self._queue)
        if master is not None and master != address:
            raise ConnectionLost(address, f"it is silent, and {master} is the master now")

    def _learn(self, given: int, asked: int, size_bytes: int) -> None:
        """How many messages to request at once. An answer that falls short leaves a gap, which costs another
        pull. If bytes are the limit, request slightly fewer than fitted last time; more again when messages have
        become smaller."""
        self._answer_bytes = size_bytes
        self._largest_bytes = max(self._largest_bytes, size_bytes)
        cut_by_bytes = self._largest_bytes >= _BULK_BYTES
        if given < asked or not self._stride:
            self._stride = max(1, given - (given // 16 if cut_by_bytes else 0))
        elif cut_by_bytes and size_bytes < self._largest_bytes // 2:
            self._stride = min(2 * self._stride, _PULL_MESSAGES)

    def _ask_on(self, connection: BlockingConnection) -> None:
        """Refill the window when half of it is answered, in one write, so that requests and answers travel in
        groups."""
        # With a filter, or before the first answer, the end of a pull cannot be predicted.
        window = 1
        if self._stride and not self._is_filtered:
            window = _BYTES_IN_FLIGHT // max(1, self._answer_bytes)
            window = min(max(window, _MIN_PULLS_IN_FLIGHT), _MAX_PULLS_IN_FLIGHT)
        if len(self._in_flight) > window // 2:
            return
        wanted: list[tuple[int, int]] = []
        while len(self._in_flight) + len(wanted) < window and self._asked < self._end:
            reach = min(self._end, self._asked + (self._stride or _PULL_MESSAGES))
            wanted.append((self._asked, reach))
            self._asked = reach
        headers = [(RequestCode.PULL_MESSAGE, self._header(first, reach)) for first, reach in wanted]
        for opaque, (first, reach) in zip(connection.send_all(headers), wanted, strict=True):
            self._in_flight.append((opaque, first, reach))

    def _ask_first(self, connection: BlockingConnection, first: int, reach: int) -> None:
        """Pull the gap before everything that is in flight."""
        opaque = connection.send(RequestCode.PULL_MESSAGE, self._header(first, reach))
        self._in_flight.appendleft((opaque, first, reach))

    def _header(self, first: int, reach: int) -> PullMessageRequestHeader:
        return pull_header(
            self._task.group,
            self._queue,
            first,
            max_messages=min(reach - first, _PULL_MESSAGES),
            max_bytes=_PULL_BYTES,
            expression=self._expression,
            expression_type="SQL92" if self._task.sql_filter else "TAG",
            bulk=True,
            lo=False if self._queue in self._task.logic else None,
        )

    def _ask_master_first(self, offset: int) -> None:
        """Raises _MayBeElsewhere unless the broker that lacks this offset is the master."""
        if self._believes_replica:
            return
        master = _master_of(self._task, self._queue)
        if master != self._address:
            where = f"{master} is the master" if master is not None else "its master is away"
            raise _MayBeElsewhere(
                f"{self._address} does not have offset {offset} of queue {self._queue.queue_id} of "
                f"{self._queue.topic}, and {where}"
            )

    def _following(self, answer: Any, first: int) -> int:
        """The next offset after this answer. Raises DataLoss, BrokerError, ProtocolError."""
        if answer.code not in PULL_ANSWERS:
            raise BrokerError(answer.code, answer.remark, address=self._address)
        following = check_offsets(self._queue, first, answer.code, answer.header(PullMessageResponseHeader))
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self._ask_master_first(first)
            what = f"queue {self._queue.queue_id} of {self._queue.topic}: offset {first} is gone ({answer.remark})"
            if self._task.fail_on_data_loss:
                raise DataLoss(f"{what}. Set failOnDataLoss=false to go on at {following}")
            # Before the first message: continue there. After the last one: the range is exhausted.
            return following if following > first else self._end
        if following <= first:
            # The broker reports no message although it told the driver of this offset: it is being deleted or is
            # not dispatched yet.
            self._empty += 1
            if self._empty > _EMPTY_RETRIES:
                self._ask_master_first(first)
                raise MQError(
                    f"queue {self._queue.queue_id} of {self._queue.topic} does not give offset {first}"
                )
            time.sleep(0.1)
            return first
        return following
