"""Acknowledges popped messages: all that finish in one turn of the loop go to each broker in one request. Facts:
RocketMQ's MQClientAPIImpl.batchAckMessageAsync, BatchAckMessageRequestBody.

A failure here is not fatal: a message that is not acknowledged is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from mqspark.base.logs import escaping
from mqspark.client.remoting.instance import ClientInstance
from mqspark.errors import BrokerError, ConnectionLost, MQError
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import BatchAck, BatchAckMessageRequestBody
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader
from mqspark.protocol.receipts import Receipt, normal_topic

log = escaping(__name__)

POP_ACK_TIMEOUT_MS = 3_000
MAX_ENTRIES = 128
"""Check points acknowledged in one request."""
MAX_SPAN = 8_192
"""Offsets between the first message of a check point and an acknowledged one in a batch, because the request
contains a bit for each."""

_Ack = tuple[str, Receipt]
"""The topic where the message is stored, and its receipt."""


class PopAcks:
    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, list[_Ack]] = {}
        """broker name → acknowledgements to send at the end of this turn."""
        self._single: set[str] = set()
        """Brokers that do not support batches."""
        self._tasks: set[asyncio.Task[None]] = set()

    def ack(self, topic: str, receipt: Receipt) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.setdefault(receipt.broker_name, []).append((topic, receipt))

    def put_off(self, topic: str, receipt: Receipt, invisible_ms: int) -> None:
        """Make the message visible again after ``invisible_ms``; the receipt becomes void."""
        self.spawn(self._put_off(topic, receipt, invisible_ms))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ``stop`` waits for."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Wait until all acknowledgements so far have reached the brokers or failed."""
        self._flush()
        while self._tasks:
            await asyncio.gather(*self._tasks)
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for broker_name, acks in waiting.items():
            self.spawn(self._send(broker_name, acks))

    async def _send(self, broker_name: str, acks: list[_Ack]) -> None:
        if len(acks) > 1 and broker_name not in self._single:
            entries, acks = self._entries(acks)
            for first in range(0, len(entries), MAX_ENTRIES):
                acks += await self._send_batch(broker_name, entries[first : first + MAX_ENTRIES])
        await asyncio.gather(*(self._send_one(topic, receipt) for topic, receipt in acks))

    def _entries(self, acks: list[_Ack]) -> tuple[list[tuple[BatchAck, list[_Ack]]], list[_Ack]]:
        """The entries by check point, and acknowledgements that do not fit into one."""
        entries: dict[tuple[str, Receipt], list[_Ack]] = {}
        rest = []
        for ack in acks:
            topic, receipt = ack
            if 0 <= receipt.offset - receipt.start_offset < MAX_SPAN:
                entries.setdefault((topic, receipt._replace(offset=-1)), []).append(ack)
            else:
                rest.append(ack)
        return [(self._entry(*key, members), members) for key, members in entries.items()], rest

    def _entry(self, topic: str, receipt: Receipt, members: list[_Ack]) -> BatchAck:
        bits = 0
        for _, one in members:
            bits |= 1 << one.offset - one.start_offset
        return BatchAck(
            consumer_group=self._group,
            topic=normal_topic(topic, self._group),
            retry=receipt.retry,
            start_offset=receipt.start_offset,
            queue_id=receipt.queue_id,
            revive_queue_id=receipt.revive_queue,
            pop_time=receipt.pop_time_ms,
            invisible_time=receipt.invisible_time_ms,
            bit_set=bits.to_bytes((bits.bit_length() + 7) // 8, "little"),
        )

    async def _send_batch(self, broker_name: str, entries: list[tuple[BatchAck, list[_Ack]]]) -> list[_Ack]:
        """Returns the acknowledgements to send one by one, if the broker does not support batches."""
        body = BatchAckMessageRequestBody(broker_name=broker_name, acks=[entry for entry, _ in entries])
        try:
            await self._invoke(broker_name, RequestCode.BATCH_ACK_MESSAGE, None, encode_body(body))
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._single.add(broker_name)
                return [ack for _, members in entries for ack in members]
            self._failed(broker_name, error)
        except MQError as error:
            self._failed(broker_name, error)
        return []

    def _failed(self, broker_name: str, error: MQError) -> None:
        """Messages are delivered again. A line when it begins, not for each of them."""
        what = "the broker %s does not know what %s has consumed, which comes again: %s"
        self._instance.failed(("ack", self._group, broker_name), error, what, broker_name, self._group, error)

    async def _send_one(self, topic: str, receipt: Receipt) -> None:
        header = AckMessageRequestHeader(
            consumer_group=self._group,
            topic=topic,
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=receipt.offset,
            bname=receipt.broker_name,
        )
        try:
            await self._invoke(receipt.broker_name, RequestCode.ACK_MESSAGE, header)
        except MQError as error:
            log.debug("cannot acknowledge %d of %s for %s: %s", receipt.offset, topic, self._group, error)
            self._failed(receipt.broker_name, error)

    async def renew(self, topic: str, receipt: Receipt, invisible_ms: int) -> bool | None:
        """Hold an ordered message for ``invisible_ms`` from now, with the same receipt. False if it is no longer
        held here, None if unknown."""
        try:
            await self._change(topic, receipt, invisible_ms)
        except BrokerError as error:
            if error.code == ResponseCode.NO_MESSAGE:
                return False
            self._failed(receipt.broker_name, error)
        except MQError as error:
            self._failed(receipt.broker_name, error)
        else:
            return True
        return None

    async def _put_off(self, topic: str, receipt: Receipt, invisible_ms: int) -> None:
        try:
            await self._change(topic, receipt, invisible_ms)
        except MQError as error:
            log.debug("cannot delay %d of %s for %s: %s", receipt.offset, topic, self._group, error)
            self._failed(receipt.broker_name, error)

    async def _change(self, topic: str, receipt: Receipt, invisible_ms: int) -> None:
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self._group,
            topic=topic,
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=receipt.offset,
            invisible_time=invisible_ms,
            bname=receipt.broker_name,
        )
        await self._invoke(receipt.broker_name, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)

    async def _invoke(
        self,
        broker_name: str,
        code: int,
        header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader | None,
        body: bytes = b"",
    ) -> None:
        address = self._instance.broker_address(broker_name)
        if address is None:
            raise ConnectionLost(broker_name, "it is no longer in any route")
        await self._instance.remoting.invoke(address, code, header, body, timeout_ms=POP_ACK_TIMEOUT_MS)
        what = "the broker %s knows again what %s consumes"
        self._instance.outages.over(("ack", self._group, broker_name), what, broker_name, self._group)
