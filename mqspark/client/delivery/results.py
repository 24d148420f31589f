"""Results of sends. Facts: RocketMQ's SendResult, SendStatus, LocalTransactionState."""

from __future__ import annotations

import enum
from typing import Any, Protocol

import msgspec

from mqspark.message import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    MessageQueue,
    QueueOffset,
)
from mqspark.protocol.codes import ResponseCode


class SettleFuture(Protocol):
    """The common interface of asyncio's and concurrent.futures' futures. Gets a SendResult, or None once a oneway
    message is handed over."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class SendStatus(enum.Enum):
    """The guarantee that the broker could meet; the message is stored in all four cases."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)


STATUSES: dict[int, SendStatus] = {status.value: status for status in SendStatus}
"""By response code."""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The place of a stored message. For a batch: that of its first message, and all ids joined by commas."""

    status: SendStatus
    message_id: str
    """The unique id that consumers see as ``message_id``."""
    offset_message_id: str
    """The broker's own id: the position in its CommitLog."""
    queue: MessageQueue
    queue_offset: QueueOffset
    recall_handle: str | None = None
    """For ``Producer.recall`` of a timed message; None if the broker has recall disabled."""

    @property
    def message_ids(self) -> list[str]:
        """The unique ids of all messages of a batch, in their order."""
        return self.message_id.split(",")


class TransactionState(enum.Enum):
    """The outcome of a local transaction. A listener that returns None means UNKNOWN."""

    COMMIT = TRANSACTION_COMMIT_TYPE
    ROLLBACK = TRANSACTION_ROLLBACK_TYPE
    UNKNOWN = 0


RETRYABLE = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
    }
)
"""Response codes after which another broker is tried (DefaultMQProducer.retryResponseCodes), or the one that leads the
logic queue now."""
