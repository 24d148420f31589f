"""Receipt handles of gRPC clients: a receipt of POP, and behind it the physical offset of the message, by which
the broker finds what it makes a dead letter (ConsumerProcessor.createHandle, ReceiptHandle).

Facts: docs/rocketmq/pop.md#receipts.
"""

from __future__ import annotations

from typing import NamedTuple

from mqspark.errors import ProtocolError
from mqspark.message import parse_number
from mqspark.protocol.receipts import Receipt, parse_receipt

_RECEIPT_PARTS = 8


class ReceiptHandle(NamedTuple):
    """``position`` is -1 in a handle of somebody who does not know it."""

    receipt: Receipt
    position: int

    def encode(self) -> str:
        text = self.receipt.encode()
        return text if self.position < 0 else f"{text} {self.position}"

    def changed(self, pop_time_ms: int, invisible_ms: int, revive_queue: int) -> ReceiptHandle:
        """After a change of the invisible time, as the broker answers it. The new check point is of this message alone.
        Of a message that is acknowledged already the broker says nothing, and the handle stays."""
        if not pop_time_ms:
            return self
        receipt = self.receipt._replace(
            start_offset=self.receipt.offset,
            pop_time_ms=pop_time_ms,
            invisible_time_ms=invisible_ms,
            revive_queue=revive_queue,
        )
        return self._replace(receipt=receipt)


def parse_handle(text: str) -> ReceiptHandle:
    """Raises ProtocolError."""
    receipt = parse_receipt(text)
    if receipt.offset < 0:
        raise ProtocolError(f"{text[:80]!r} is not a receipt handle: it names no message")
    parts = text.split(" ")
    position = parse_number(parts[_RECEIPT_PARTS]) if len(parts) > _RECEIPT_PARTS else None
    return ReceiptHandle(receipt, -1 if position is None else position)
