"""Copies older values of compaction topics from the master, when the log of a slave is too young to have them
(CompactionLog.loadFromRemote, MessageFetcher).

The log of a slave begins where its master's began when it was copied first. Values that the master compacted before
that, or that the slave's own generation lacks (``Current.is_partial``), are pulled from the master as a consumer does:
all offsets before the first one of the slave's log. They become the next generation of the queue, which ends there; the
slave's own compaction continues from it.

Lives on the broker's loop; a thread checks and writes the records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from mqspark.base.logs import Outages, sparing
from mqspark.base.names import path_below
from mqspark.errors import ProtocolError
from mqspark.message import TOOLS_GROUP
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.record.record import Verdict, check_record, tags_code
from mqspark.store.compaction.compactedqueues import (
    COMPACT_LOCK,
    COMPACTED,
    Current,
    GenerationWriter,
    adopt,
    read_current,
)
from mqspark.store.disk.files import FileLayer
from mqspark.store.store import MessageStore
from mqspark_server.net.outbound import REQUEST_ERRORS, Outbound
from mqspark_server.process.tasks import end_all

log = sparing("mqspark.compaction", lines=20)

COPY_LOOK_S = 10.0
"""Interval of checks of the queues of compaction topics; each check visits all queues of the store."""
COPY_RETRY_S = 10.0
"""Pause after a queue that could not be copied."""
COPY_TIMEOUT_S = 10.0
WAIT_S = 0.1
"""Interval of checks whether a compaction has ended."""
MAX_MESSAGES = 1000
_SUBSCRIPTION = 4
"""PullSysFlag.FLAG_SUBSCRIPTION."""
_GOES_ON = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)


class _Lacking(NamedTuple):
    topic: str
    queue_id: int
    low: int
    """The first offset that the log has."""


class _NothingOlder(Exception):
    """The master has none of these offsets either."""


class MasterCopy:
    """The queues of one slave."""

    def __init__(self, store: MessageStore, connect: Callable[[], Awaitable[Outbound | None]]) -> None:
        """``connect``: a connection to the master; None while this slave has not caught up with its tables or log."""
        self._store = store
        self._files: FileLayer = store.files
        self._root = Path(store.config.store_path_root_dir)
        self._connect = connect
        self._task: asyncio.Task[None] | None = None
        self.copied = 0
        """Queues that were copied."""
        self._given_up: set[_Lacking] = set()
        """Queues whose older values the master does not have either."""
        self._outages = Outages(log)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._look_repeatedly(), name="mqspark-compaction-copy"
        )

    async def stop(self) -> None:
        await end_all(self._task)

    async def _look_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(COPY_LOOK_S)
            try:
                await self.look()
                self._outages.over("", "older values of compaction topics are copied from the master again")
            except REQUEST_ERRORS as error:
                what = "older values of compaction topics are not copied from the master now: %s"
                self._outages.failed("", None, what, error)
                await asyncio.sleep(COPY_RETRY_S)

    async def look(self) -> None:
        """Copy missing values if the master is reachable. Raises OSError, ValueError, MQError."""
        store = self._store
        if (
            not store.config.enable_compaction
            or store.condition.read_only is not None
            or store.copy.is_cutting
        ):
            return
        lacking = await asyncio.to_thread(self._lacking, self._begun())
        if not lacking:
            return
        connection = await self._connect()
        if connection is None:
            return
        try:
            for each in lacking:
                try:
                    await self._copy(connection, each)
                except _NothingOlder:
                    self._given_up.add(each)
                    log.warning(
                        "queue %s/%d: the master has nothing before offset %d either",
                        each.topic,
                        each.queue_id,
                        each.low,
                    )
        finally:
            connection.close()

    def _begun(self) -> list[_Lacking]:
        """The queues whose log does not begin at offset 0."""
        topics = self._store.upkeep.compact_duty.topics()
        begun = {
            _Lacking(topic, queue_id, low)
            for topic in topics
            for queue_id in self._store.offsets.queue_ids(topic)
            if (low := self._store.offsets.log_bounds(topic, queue_id)[0])
        }
        self._given_up &= begun
        return sorted(begun - self._given_up)

    def _lacking(self, begun: list[_Lacking]) -> list[_Lacking]:
        """In a thread: the queues whose older values are in no generation. Raises OSError."""
        lacking = []
        for each in begun:
            current = read_current(self._directory(each), self._files)
            if current is None or current.is_partial or current.end < each.low:
                lacking.append(each)
        return lacking

    def _directory(self, queue: _Lacking) -> Path:
        return path_below(self._root / COMPACTED, queue.topic, queue.queue_id)

    async def _copy(self, connection: Outbound, queue: _Lacking) -> None:
        writer = await asyncio.to_thread(GenerationWriter, self._directory(queue), "next-master", self._files)
        try:
            offset, last = 0, -1
            while offset < queue.low:
                answer = await connection.request(
                    RequestCode.PULL_MESSAGE, _pull(queue, offset), timeout_s=COPY_TIMEOUT_S
                )
                following = _next_offset(answer, queue, offset)
                if answer.code == ResponseCode.SUCCESS:
                    last = await asyncio.to_thread(_append, writer, answer.body, queue, last)
                offset = following
            await asyncio.to_thread(writer.finish)
            await self._publish_copy(queue, writer)
        except BaseException:
            with contextlib.suppress(OSError):  # the topic may be gone, and its directory
                await asyncio.to_thread(writer.abandon)
            raise

    async def _publish_copy(self, queue: _Lacking, writer: GenerationWriter) -> None:
        """Make the copy the generation of its queue. Compaction and the retention of compacted files wait meanwhile."""
        store, duty = self._store, self._store.upkeep.compact_duty
        while duty.is_running:  # noqa: ASYNC110 - runs end in several places, seconds later
            await asyncio.sleep(WAIT_S)
        duty.is_running = True
        duty.forget()
        try:
            if queue.topic not in duty.topics() or not self._has(queue):
                log.warning("queue %s/%d has changed while it was copied", queue.topic, queue.queue_id)
                await asyncio.to_thread(writer.abandon)
                return
            await asyncio.to_thread(self._adopt, queue, writer)
        finally:
            duty.is_running = False
            duty.forget()
            duty.go_on()
        store.reads.compacted.look_again()
        self.copied += 1
        log.info(
            "queue %s/%d: %d kept records before offset %d were copied from the master",
            queue.topic,
            queue.queue_id,
            writer.messages,
            queue.low,
        )

    def _has(self, queue: _Lacking) -> bool:
        """Whether the log still has the queue's records from ``low`` on."""
        first, entries = self._store.offsets.entries(queue.topic, queue.queue_id, queue.low, 1)
        if not entries:
            return self._store.offsets.log_bounds(queue.topic, queue.queue_id)[1] >= queue.low
        return first == queue.low and entries[0][0] >= self._store.log.min_offset

    def _adopt(self, queue: _Lacking, writer: GenerationWriter) -> None:
        """In a thread. Raises StoreLocked, OSError."""
        files, path, directory = self._files, self._root / COMPACT_LOCK, self._directory(queue)
        lock = files.lock(path, alone=False)
        try:
            before = read_current(directory, files)
            number = 1 if before is None else before.generation + 1
            current = Current(number, queue.low, writer.messages, writer.size_bytes)
            adopt(directory, current, writer.log_path, writer.queue_path, files)
        finally:
            files.unlock(path, lock)


def _pull(queue: _Lacking, offset: int) -> dict[str, str]:
    return {
        "consumerGroup": TOOLS_GROUP,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(MAX_MESSAGES),
        "sysFlag": str(_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        "lo": "false",
        "mqsparkBulk": "true",
    }


def _next_offset(answer: Command, queue: _Lacking, offset: int) -> int:
    """The offset of the next pull. Raises _NothingOlder, ProtocolError."""
    if answer.code == ResponseCode.PULL_OFFSET_MOVED:
        raise _NothingOlder
    name = f"{queue.topic}/{queue.queue_id}"
    if answer.code not in _GOES_ON:
        raise ProtocolError(
            f"the master answers {answer.code} to a pull of {name}: {(answer.remark or '')[:200]}"
        )
    following = int(answer.ext["nextBeginOffset"])
    if following <= offset:
        raise ProtocolError(f"the master has nothing of {name} from offset {offset} on")
    return following


def _append(writer: GenerationWriter, body: bytes | memoryview, queue: _Lacking, last: int) -> int:
    """In a thread: append the records of an answer that are after ``last`` and before the log. Returns the offset of
    the newest one. Raises ProtocolError for a malformed or unexpected record, OSError."""
    view, at = memoryview(body), 0
    while at < len(view):
        found = check_record(view, at, len(view), verify_crc=True)
        if (
            found.verdict is not Verdict.VALID
            or (found.topic, found.queue_id) != (queue.topic, queue.queue_id)
            or found.queue_offset <= last
        ):
            raise ProtocolError(
                f"the master sent a malformed or unexpected record of {queue.topic}/{queue.queue_id}"
            )
        if found.queue_offset >= queue.low:
            break
        last = found.queue_offset
        writer.append(view[at : at + found.size_bytes], last, tags_code(found.properties))
        at += found.size_bytes
    return last
