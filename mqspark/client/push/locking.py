"""Queue locks at the brokers, for ordered consumers. Facts: RocketMQ's RebalanceImpl."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from mqspark.base.logs import escaping
from mqspark.client.remoting.instance import ClientInstance
from mqspark.client.remoting.remoting import level_of
from mqspark.errors import ClientError, MQError
from mqspark.message import MessageQueue
from mqspark.protocol.bodies.body import Queue, decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from mqspark.protocol.codes import RequestCode

log = escaping(__name__)

_TIMEOUT_MS = 1_000


class BrokerLocks:
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ, one request per broker."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def lock(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, bool]:
        """Take or renew locks; False where another member holds one. Queues whose broker did not answer are
        absent."""
        by_broker = self._by_broker(queues)
        answers = await asyncio.gather(*(self._lock(name, part) for name, part in by_broker.items()))
        return {queue: is_ours for answer in answers for queue, is_ours in answer.items()}

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> dict[MessageQueue, bool]:
        body = LockBatchRequestBody(
            consumer_group=self._group,
            client_id=self._instance.client_id,
            mq_set=[Queue.of(queue) for queue in queues],
        )
        try:
            answer = await self._ask(broker_name, RequestCode.LOCK_BATCH_MQ, encode_body(body))
        except MQError as error:
            log.log(level_of(error), "cannot lock %s for %s: %s", queues, self._group, error)
            return {}
        ours = {queue.queue for queue in decode_body(LockBatchResponseBody, answer).lock_ok_mq_set}
        return {queue: queue in ours for queue in queues}

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Never raises: a lock that remains expires."""
        by_broker = self._by_broker(queues)
        await asyncio.gather(*(self._unlock(name, part) for name, part in by_broker.items()))

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        body = UnlockBatchRequestBody(
            consumer_group=self._group,
            client_id=self._instance.client_id,
            mq_set=[Queue.of(queue) for queue in queues],
        )
        try:
            await self._ask(broker_name, RequestCode.UNLOCK_BATCH_MQ, encode_body(body))
        except MQError as error:
            log.log(level_of(error), "cannot unlock %s for %s: %s", queues, self._group, error)

    async def _ask(self, broker_name: str, code: int, body: bytes) -> bytes | memoryview:
        address = self._instance.broker_address(broker_name)
        if address is None:
            raise ClientError(f"broker {broker_name} has no address")
        answer = await self._instance.remoting.invoke(address, code, body=body, timeout_ms=_TIMEOUT_MS)
        return answer.body

    def _by_broker(self, queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(self._instance.broker_of(queue), []).append(queue)
        return by_broker
