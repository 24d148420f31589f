"""Ranges of queues to RecordBatches, in a Spark worker: in place from the broker's files, or over TCP.

Workers are reused between tasks, so open stores and connections are cached at module level and checked before
use; segments that the broker has deleted are let go within seconds. A store is read locally only if the worker's
operator allows its directory and the broker has proved to the driver that it knows the secret in it
(``mqspark.store.disk.trusted``). Otherwise, and where data is missing (another host, an expired or truncated
segment), messages are pulled over TCP from the same offset on.

Over TCP several pulls of a queue are in flight, each starting where the previous one will probably end. A gap is
pulled again; an overlap is dropped by offset. Must not import pyspark.
"""

from __future__ import annotations

import hmac
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mqspark.arrow.cluster.cluster_queues import BrokerPlace, DataLoss
from mqspark.arrow.cluster.queueranges import LogicPlace, QueueRange
from mqspark.arrow.cluster.readtasks import ReadTask
from mqspark.arrow.reading.lookout import Watch
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
from mqspark.client.blocking import BUSY, BlockingClient, pull_header
from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.pullanswers import check_offsets
from mqspark.errors import (
    BrokerError,
    ConnectionLost,
    InvalidMessage,
    MQError,
    ProtocolError,
    RequestTimeout,
    StoreError,
)
from mqspark.message import LMQ_PREFIX, MessageQueue, java_hash
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import PullMessageRequestHeader, PullMessageResponseHeader
from mqspark.store.compaction.compacted import is_compacted
from mqspark.store.disk.trusted import Trust, prove
from mqspark.store.tools.reader import Piece, StoreReader

log = escaping("mqspark.arrow")

ALLOWED_VARIABLE = "MQSPARK_LOCAL_STORES"
"""Environment variable of workers: the only directories in which stores are read locally, separated as in PATH."""

BATCH_BYTES = 1 << 20
"""The target size of a RecordBatch. Sizes from 256 KiB to 4 MiB are all near the optimum."""

_LOG_BYTES = 2 * BATCH_BYTES
"""Bytes of log for one batch: about half of a small record is header and properties."""
_BATCH_ROWS = 65_536
_RUN_ROWS = 16
"""From this number of rows on, prefetching adjacent records pays off."""
_TOGETHER_ROWS = 50_000
"""A task with fewer rows decodes its queues together."""

_MIN_PULLS_IN_FLIGHT, _MAX_PULLS_IN_FLIGHT = 6, 64
_BYTES_IN_FLIGHT = 4 << 20
"""With RocketMQ's 32 messages per pull this is usually 64 pulls; with bulk pulls it is fewer than the minimum."""
_PULL_MESSAGES, _PULL_BYTES = 16_384, 2 << 20
"""The requested limits; the broker applies its own limits, too."""
_BULK_BYTES = 128 << 10
"""An answer of this size was limited by bytes, not by messages."""
_PULL_TIMEOUT_MS = 10_000
_PAUSE_S = 0.5
_outages = Outages(log)
"""Outages of brokers, for all tasks of this process."""
_EMPTY_RETRIES = 50
_MAX_STORES = 16
_MAX_CONNECTIONS = 64
"""The most of a worker: name servers choose how many brokers there are."""


def read_task(
    task: ReadTask, opened: OpenPlaces | None = None, batch_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows of every range, each queue's in order, as batches of about ``batch_bytes``. ``opened``: by default what
    the process keeps."""
    opened = KEPT if opened is None else opened
    together = _read_together(task, opened)
    if together is None:
        together = (batch for each in task.ranges for batch in _read_range(task, each, opened))
    yield from _coalesced(together, batch_bytes)


def _read_together(task: ReadTask, opened: OpenPlaces) -> Iterator[pa.RecordBatch] | None:
    """Decodes the queues of a small task together, in log order, because decoding a few rows costs as much as
    decoding a thousand. None if the ranges have to be read one by one."""
    topics = {(each.queue.topic, each.queue.broker_name) for each in task.ranges}
    rows = sum(each.rows for each in task.ranges)
    if len(task.ranges) < 2 or len(topics) > 1 or rows > _TOGETHER_ROWS or task.sql_filter is not None:
        return None
    if task.logic:
        return None  # records know their physical queues
    ((topic, broker),) = topics
    if topic.startswith(LMQ_PREFIX):
        return None  # the queue has to be read from each record
    store = opened.store(task.places[broker])
    if store is None:
        return None
    decoder = Decoder(
        task.columns,
        topic=topic,
        broker=broker,
        queue_id=None,
        only=MessageQueue(topic, broker, -1),
        tags=frozenset(task.tags),
        strict=task.fail_on_data_loss,
        limits=task.limits,
    )
    found = store.read_together(task.ranges, decoder, task.tags)
    return _with_the_rest(task, found, opened) if found is not None else None


def _with_the_rest(
    task: ReadTask, found: Iterator[pa.RecordBatch | list[int]], opened: OpenPlaces
) -> Iterator[pa.RecordBatch]:
    for each in found:
        if not isinstance(each, list):
            yield each
            continue
        for wanted, position in zip(task.ranges, each, strict=True):
            if position < wanted.end:
                yield from _read_range(task, replace(wanted, start=position), opened)


def _read_range(task: ReadTask, wanted: QueueRange, opened: OpenPlaces) -> Iterator[pa.RecordBatch]:
    queue = wanted.queue
    place = task.places[queue.broker_name]
    shown = task.logic.get(queue, LogicPlace(queue, 0))
    decoder = Decoder(
        task.columns,
        topic=queue.topic,
        broker=shown.queue.broker_name,
        queue_id=shown.queue.queue_id,
        offset_delta=shown.delta,
        only=queue,
        tags=frozenset(task.tags),
        strict=task.fail_on_data_loss,
        limits=task.limits,
    )
    position = wanted.start
    store = opened.store(place) if task.sql_filter is None else None
    if store is not None:
        for found in store.read(wanted, decoder, task.tags):
            if isinstance(found, int):
                position = found
            else:
                yield found
    if position < wanted.end:
        yield from pulled_batches(
            task, place.address, QueueRange(queue, position, wanted.end), decoder, opened
        )


def _coalesced(batches: Iterator[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Merges small neighbouring batches and drops empty ones."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        size = batch.nbytes
        if waiting and waiting_bytes + size > batch_bytes:
            yield _combined(waiting)
            waiting, waiting_bytes = [], 0
        waiting.append(batch)
        waiting_bytes += size
    if waiting:
        yield _combined(waiting)


def _combined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (combined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return combined


# --- local reads ----------------------------------------------------------------------------------------------


class LocalStore:
    """A broker's directory on this host."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._mapped: tuple[Any, Records] | None = None
        """The segment that was read last, and the view of its mapping."""

    def let_go(self) -> None:
        """Let go of what the broker has deleted. In any thread."""
        self._mapped = None
        self._reader.let_go_deleted()

    def read(
        self, wanted: QueueRange, decoder: Decoder, tags: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch | int]:
        """Batches, each with the next offset, as far as the files contain the range."""
        if is_compacted(self._reader.paths.root, wanted.queue.topic):
            return  # only the broker knows the compacted messages
        codes = np.array([java_hash(tag) for tag in tags], dtype=np.int64)
        position = wanted.start
        try:
            while position < wanted.end:
                until = min(wanted.end, position + _BATCH_ROWS)
                entries = self._reader.entries(wanted.queue.topic, wanted.queue.queue_id, position, until)
                if len(entries) == 0:
                    return
                offsets = np.arange(position, position + len(entries))
                if len(entries) < until - position:
                    # Some records are damaged, or the end is not visible here yet: read the queues from the
                    # records.
                    until = self._reader.queue_offset(int(entries["position"][-1])) + 1
                    if until != position + len(entries):
                        for index, place in enumerate(entries["position"].tolist()):
                            offsets[index] = self._reader.queue_offset(place)
                if codes.size:
                    kept = np.isin(entries["tags_code"], codes)
                    entries, offsets = entries[kept], offsets[kept]
                for piece, batches in self._batches(entries, decoder):
                    yield from batches
                    yield int(offsets[piece.last - 1]) + 1
                position = until
                yield position
        except (OSError, StoreError):
            # Expired or truncated during the read, or not allowed: the broker is asked from the last offset on.
            return

    def read_together(
        self, ranges: Sequence[QueueRange], decoder: Decoder, tags: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch | list[int]] | None:
        """Ranges of one topic as batches; then, if not all could be read, the next offsets. None if the files do
        not contain every entry."""
        if is_compacted(self._reader.paths.root, ranges[0].queue.topic):
            return None
        try:
            found = [
                self._reader.entries(each.queue.topic, each.queue.queue_id, each.start, each.end)
                for each in ranges
            ]
        except (OSError, StoreError):
            return None
        if any(len(entries) < each.rows for entries, each in zip(found, ranges, strict=True)):
            return None
        return self._read_all(found, ranges, decoder, tags)

    def _read_all(
        self, found: list[Any], ranges: Sequence[QueueRange], decoder: Decoder, tags: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch | list[int]]:
        entries = np.concatenate(found)
        numbers = np.repeat(np.arange(len(ranges)), [len(each) for each in found])
        offsets = np.concatenate([np.arange(each.start, each.end) for each in ranges])
        order = np.argsort(entries["position"])
        if tags:
            codes = [java_hash(tag) for tag in tags]
            order = order[np.isin(entries["tags_code"][order], codes)]
        done = 0
        try:
            for piece, batches in self._batches(entries[order], decoder):
                yield from batches
                done = piece.last
        except (OSError, StoreError):
            # In log order the offsets of a queue ascend, so the finished part of each queue is a prefix.
            following = np.array([each.start for each in ranges])
            np.maximum.at(following, numbers[order[:done]], offsets[order[:done]] + 1)
            yield following.tolist()

    def _batches(self, entries: Any, decoder: Decoder) -> Iterator[tuple[Piece, Iterator[pa.RecordBatch]]]:
        positions = np.ascontiguousarray(entries["position"])
        sizes = entries["size"].astype(np.int64)
        for piece in self._reader.pieces(positions, sizes, _LOG_BYTES):
            yield piece, self._decoded(piece, decoder, sizes)

    def _decoded(self, piece: Piece, decoder: Decoder, sizes: Any) -> Iterator[pa.RecordBatch]:
        """All batches of the piece, or none and the error."""
        if piece.segment is None:
            yield from decoder.batches(Records(piece.buffer), piece.places)
            return
        mapped = self._mapped
        if mapped is None or mapped[0] is not piece.segment:
            mapped = self._mapped = piece.segment, Records(piece.buffer)
        records = mapped[1]
        _touch(records, piece.places, piece.places + sizes[piece.first : piece.last])
        batches = decoder.batches(records, piece.places)
        try:
            batch = next(batches)
        except InvalidMessage:
            self._reader.check(piece)  # zeros in place of a truncated part are not a message
            raise
        self._reader.check(piece)
        yield batch
        yield from batches  # of what was copied before the first


def _touch(records: Records, positions: Any, ends: Any) -> None:
    """Prefetch adjacent records into the processor's cache."""
    cuts = np.flatnonzero(positions[1:] != ends[:-1])
    if len(cuts) * _RUN_ROWS < len(positions):
        lows = [int(positions[0]), *positions[cuts + 1].tolist()]
        for low, high in zip(lows, [*ends[cuts].tolist(), int(ends[-1])], strict=True):
            records.touch(low, high)


class OpenPlaces:
    """The stores and connections that reads have opened, and keep until ``close``. Of one thread at a time."""

    def __init__(self) -> None:
        self.stores: dict[tuple[int, BrokerPlace, str], LocalStore] = {}
        self.connections: dict[tuple[int, str, Credentials | None], BlockingConnection] = {}
        """A worker serves queries of several users: each has connections of its own."""

    def close(self) -> None:
        _open.discard(self)
        self.stores.clear()
        while self.connections:
            self.connections.popitem()[1].close()

    def store(self, place: BrokerPlace) -> LocalStore | None:
        """The local store, if its directory may be read and is proved to be the broker's."""
        if not place.store_path or not place.proof:
            return None
        try:
            reader = StoreReader(
                place.store_path, place.commit_log_path or None, Trust(_allowed(place)), maps=True
            )
            nonce = reader.nonce() or ""
        except (OSError, StoreError) as error:
            log.debug("%s is not read locally: %s", place.store_path, error)
            return None
        proof = prove(nonce, place.challenge, place.store_path, place.commit_log_path)
        if not hmac.compare_digest(proof.encode(), place.proof.encode(errors="replace")):
            return None
        key = (os.getpid(), replace(place, challenge="", proof=""), nonce)
        store = self.stores.get(key)
        if store is None:
            # A restarted broker has another nonce and may have truncated its log: close what is open of it.
            for other in [other for other in self.stores if other[1].store_path == place.store_path] or list(
                self.stores
            )[: 1 - _MAX_STORES]:
                del self.stores[other]
            store = self.stores[key] = LocalStore(reader)
            _open.add(self)
            _watch.begin()
        return store

    def connection(self, address: str, credentials: Credentials | None) -> BlockingConnection:
        """The connection of this process, or a new one. A connection that the broker closed while idle is
        replaced."""
        key = (os.getpid(), address, credentials)
        connection = self.connections.get(key)
        if connection is not None:
            try:
                connection.receive_ready()
            except ConnectionLost:
                connection = None
        if connection is None:
            while len(self.connections) >= _MAX_CONNECTIONS:
                self.connections.pop(next(iter(self.connections))).close()
            connection = self.connections[key] = BlockingConnection(address, credentials=credentials)
        return connection

    def forget(self, address: str, credentials: Credentials | None) -> None:
        stale = self.connections.pop((os.getpid(), address, credentials), None)
        if stale is not None:
            stale.close()


_open: set[OpenPlaces] = set()
"""Those with stores; ``close`` takes them out."""


def _let_go() -> None:
    for places in list(_open):
        for store in list(places.stores.values()):
            store.let_go()


_watch = Watch(_let_go)
KEPT = OpenPlaces()
"""What a process of Spark's keeps between its tasks."""


def _allowed(place: BrokerPlace) -> tuple[str, ...] | None:
    """The directories allowed by this host's operator, or else by the query; None: decided by owner."""
    text = os.environ.get(ALLOWED_VARIABLE)
    return place.directories if text is None else tuple(filter(None, text.split(os.pathsep)))


# --- over TCP -------------------------------------------------------------------------------------------------


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
        if size >= _LOG_BYTES // 2:
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
    """Raises the last failure when the broker gives nothing for ``retryTimeout``."""
    puller = _Puller(task, address, wanted, opened)
    retry_s = task.retry_timeout_ms / 1000
    failing_since: float | None = None
    broker = task.nameserver, wanted.queue.broker_name
    while puller.position < wanted.end:
        before = puller.position
        try:
            for answer in puller.answers():
                _outages.over(broker, "broker %s is pulled from again", wanted.queue.broker_name)
                yield answer
        except (ConnectionLost, RequestTimeout, BrokerError) as error:
            if isinstance(error, BrokerError) and error.code not in BUSY:
                raise
            now = time.monotonic()
            if puller.position > before or failing_since is None:
                failing_since = now
            left_s = failing_since + retry_s - now
            if left_s <= 0:
                error.add_note(f"Nothing could be pulled for retryTimeout ({retry_s:.0f} s).")
                raise
            what = "%s; pulling again, for %.0f s more (retryTimeout)"
            _outages.failed(broker, None, what, error, left_s)
            puller.reset(_master_of(task, wanted.queue.broker_name))
            time.sleep(min(_PAUSE_S, left_s))


def _master_of(task: ReadTask, broker_name: str) -> str | None:
    """The address of the master after a failover; None if no name server knows one."""
    if not task.nameserver:
        return None
    with closing(BlockingClient(task.nameserver, credentials=task.signing.credentials())) as client:
        return client.master_of(broker_name)


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

    def reset(self, address: str | None) -> None:
        """Begin again after a failure, at this address if it is given."""
        self._in_flight.clear()
        self._asked = self.position
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
        master = _master_of(self._task, self._queue.broker_name)
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

    def _following(self, answer: Any, first: int) -> int:
        """The next offset after this answer. Raises DataLoss, BrokerError, ProtocolError."""
        if answer.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            raise BrokerError(answer.code, answer.remark, address=self._address)
        following = check_offsets(self._queue, first, answer.code, answer.header(PullMessageResponseHeader))
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
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
                raise MQError(
                    f"queue {self._queue.queue_id} of {self._queue.topic} does not give offset {first}"
                )
            time.sleep(0.1)
            return first
        return following
