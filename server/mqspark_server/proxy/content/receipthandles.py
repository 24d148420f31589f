"""Receipt handles of gRPC clients: a receipt of POP, and behind it the physical offset of the message, by which
the broker finds what it makes a dead letter (ConsumerProcessor.createHandle, ReceiptHandle).

Facts: docs/rocketmq/pop.md#receipts.
"""

from __future__ import annotations

from typing import NamedTuple

from mqspark.base.bounded import Memo
from mqspark.errors import ProtocolError
from mqspark.message import MAX_DIGITS, parse_number
from mqspark.protocol.receipts import MAX_RECEIPT_LENGTH, Receipt, parse_receipt

POP_PARTS, _RECEIPT_PARTS = 7, 8


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


class PoppedReceipt(NamedTuple):
    """A handle in parts: what it shares with the others of its pop and queue is one object for all of them."""

    pop: Receipt
    """Without an offset."""
    offset: int
    position: int


_pops: Memo[str, Receipt] = Memo(
    "proxy.handles", parse_receipt, weigh=lambda text, receipt: 700 + 4 * len(text)
)


def parse_parts(text: str) -> PoppedReceipt:
    """A handle of this service in its usual form, or any other. Raises ProtocolError."""
    if len(text) <= MAX_RECEIPT_LENGTH:
        start, _, position = text.rpartition(" ")
        start, _, offset = start.rpartition(" ")
        if _is_plain(offset) and _is_plain(position) and start.count(" ") == POP_PARTS - 1:
            return PoppedReceipt(_pops[start], int(offset), int(position))
    receipt, place = parse_handle(text)
    return PoppedReceipt(receipt._replace(offset=-1), receipt.offset, place)


def _is_plain(number: str) -> bool:
    return number.isdecimal() and len(number) <= MAX_DIGITS


def parse_handle(text: str) -> ReceiptHandle:
    """Raises ProtocolError."""
    receipt = parse_receipt(text)
    if receipt.offset < 0:
        raise ProtocolError(f"{text[:80]!r} is not a receipt handle: it names no message")
    parts = text.split(" ")
    position = parse_number(parts[_RECEIPT_PARTS]) if len(parts) > _RECEIPT_PARTS else None
    return ReceiptHandle(receipt, -1 if position is None else position)
