"""Storage of a group's offsets: at the brokers (clustering) or in a file of this host (broadcasting).

Facts: docs/rocketmq/client.md#broadcasting (RemoteBrokerOffsetStore and LocalFileOffsetStore).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from mqspark.base.logs import escaping
from mqspark.base.names import path_below
from mqspark.base.wholefile import replace_file
from mqspark.client.consumer.commits import commit_waves
from mqspark.client.remoting.instance import ClientInstance
from mqspark.client.remoting.pullanswers import committed_in
from mqspark.client.remoting.topic_routes import BrokerReplica, replica_of
from mqspark.errors import BrokerError, ClientError, ConnectionLost, MQError, NoRoute, ProtocolError
from mqspark.message import MASTER_ID, MessageQueue
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.body import encode_body, queue_key, queue_of
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import (
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from mqspark.protocol.headers.header import MAX_PLACE

log = escaping(__name__)

_TIMEOUT_MS = 5_000


class Offsets(Protocol):
    async def read(self, queue: MessageQueue) -> int | None:
        """The committed offset; None if there is none. Raises ClientError if it cannot be determined."""

    async def write(self, offsets: Mapping[MessageQueue, int]) -> Collection[MessageQueue]:
        """Store the offsets and return the queues whose offsets are stored durably. A slave that stands in for its
        master does not pass offsets on to it. Raises ClientError or OSError if one of them is not stored."""

    async def write_at_last(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Like ``write``, as the last call before the end."""


class BrokerOffsets:
    """At the master of each queue, otherwise at any replica (QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET)."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        # An older offset must not overtake a newer one: RocketMQ's brokers process requests in parallel.
        self._turn = asyncio.Lock()

    async def read(self, queue: MessageQueue) -> int | None:
        # Like Java's client, this lets the broker return 0 for a young queue (setZeroIfNotFound is not set). A
        # queue added to a topic that a group already reads must not lose messages that arrived before the group
        # noticed the queue.
        try:
            return await self._read_at(self._replica(queue).address, queue)
        except BrokerError as error:
            if not await self._instance.has_moved(queue, error):
                raise
        return await self._read_at(self._replica(queue).address, queue)

    async def _read_at(self, address: str, queue: MessageQueue) -> int | None:
        response = await self._instance.remoting.invoke(
            address,
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetRequestHeader(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                bname=queue.broker_name,
            ),
            timeout_ms=_TIMEOUT_MS,
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return committed_in(response)

    async def write(self, offsets: Mapping[MessageQueue, int]) -> Collection[MessageQueue]:
        failures: dict[tuple[str, str], BaseException] = {}
        lasting = []
        async with self._turn:
            for wave in commit_waves(offsets):
                # An unreachable broker must not stop the commits at the others.
                queues = [
                    queue for queue in wave if (self._instance.broker_of(queue), queue.topic) not in failures
                ]
                outcomes = await asyncio.gather(
                    *(self._write_one(queue, offsets[queue]) for queue in queues), return_exceptions=True
                )
                for queue, outcome in zip(queues, outcomes, strict=True):
                    if isinstance(outcome, BaseException):
                        failures[self._instance.broker_of(queue), queue.topic] = outcome
                    elif outcome == MASTER_ID:
                        lasting.append(queue)
        for failure in failures.values():
            raise failure
        return lasting

    async def write_at_last(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Like ``write``, but retried on a new connection if the present one is broken."""
        try:
            await self.write(offsets)
        except ConnectionLost as error:
            log.warning("writing the last offsets of %s again: %s", self._group, error)
            await self.write(offsets)

    async def _write_one(self, queue: MessageQueue, offset: int) -> int:
        """Store at one broker; returns its id."""
        try:
            return await self._write_at(self._replica(queue), queue, offset)
        except BrokerError as error:
            if not await self._instance.has_moved(queue, error):
                raise
        return await self._write_at(self._replica(queue), queue, offset)

    async def _write_at(self, replica: BrokerReplica, queue: MessageQueue, offset: int) -> int:
        await self._instance.remoting.invoke(
            replica.address,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetRequestHeader(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                commit_offset=offset,
                bname=queue.broker_name,
            ),
            timeout_ms=_TIMEOUT_MS,
        )
        return replica.broker_id

    def _replica(self, queue: MessageQueue) -> BrokerReplica:
        replica = replica_of(self._instance.replicas(self._instance.broker_of(queue)))
        if replica is None:
            raise NoRoute(queue.topic, f"broker {queue.broker_name} has no address")
        return replica


class LocalOffsets:
    """``<directory>/<client id>/<group>/offsets.json`` in RocketMQ's format; the previous version is in ``.bak``."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self._path = path_below(directory, client_id, group, "offsets.json")
        self._table: dict[MessageQueue, int] | None = None
        self._is_damaged = False
        self._lock = asyncio.Lock()

    async def read(self, queue: MessageQueue) -> int | None:
        async with self._lock:
            return (await self._loaded()).get(queue)

    async def write(self, offsets: Mapping[MessageQueue, int]) -> Collection[MessageQueue]:
        async with self._lock:
            table = await self._loaded()
            if all(table.get(queue) == offset for queue, offset in offsets.items()):
                return offsets.keys()
            table = {**table, **offsets}
            document = {"offsetTable": {queue_key(queue): offset for queue, offset in sorted(table.items())}}
            await asyncio.to_thread(self._save, encode_body(document))
            self._table = table  # what could not be saved is written again
        return offsets.keys()

    async def write_at_last(self, offsets: Mapping[MessageQueue, int]) -> None:
        await self.write(offsets)

    async def _loaded(self) -> dict[MessageQueue, int]:
        if self._table is None:
            self._table = await asyncio.to_thread(self._load)
        return self._table

    def _load(self) -> dict[MessageQueue, int]:
        backup = self._path.with_suffix(".json.bak")
        damaged: MQError | None = None
        for path in (self._path, backup):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            try:
                return _parse(text)
            except MQError as error:
                log.warning("cannot read %s: %s", path, error)
                damaged, self._is_damaged = error, True
        if damaged is not None:
            raise ClientError(f"neither {self._path} nor its .bak is readable: {damaged}") from damaged
        return {}

    def _save(self, content: bytes) -> None:
        # As private as a broker's files.
        for directory in (self._path.parent.parent, self._path.parent):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Beside a damaged file the .bak is the good one.
        backup = None if self._is_damaged else self._path.with_suffix(".json.bak")
        replace_file(self._path, content, mode=0o600, backup=backup)
        self._is_damaged = False


def _parse(text: bytes) -> dict[MessageQueue, int]:
    if not text.strip():
        raise ProtocolError("the file is empty")
    document = fastjson.loads(text, fastjson.FILE)
    table = document.get("offsetTable") if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise ProtocolError("it has no offsetTable")
    for key, offset in table.items():
        if not isinstance(offset, int) or not 0 <= offset <= MAX_PLACE:
            raise ProtocolError(f"{offset!r:.80} of {key:.80} is no offset")
    return {queue_of(key): offset for key, offset in table.items()}
