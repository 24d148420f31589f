"""Where the half messages of open transactions are.

A broker finds a half message by its offsets, which clients of gRPC do not know: they name a transaction by its message
id. So its offsets are kept from the send, or from the check, to the end. Of a transaction that is forgotten a check
comes later, and brings them again.
"""

from __future__ import annotations

from typing import NamedTuple

from mqspark.base.bounded import BoundedMap, Ledger
from mqspark.base.config import Bound

_HALF_BYTES = 250


class GrpcHalf(NamedTuple):
    broker_name: str
    queue_offset: int
    physical_offset: int


class GrpcHalves:
    """The halves by topic and transaction id. A full table forgets the oldest."""

    def __init__(self, max_bytes: Bound) -> None:
        self.ledger = Ledger("grpcTransactions", max_bytes)
        self._halves: BoundedMap[tuple[str, str], GrpcHalf] = self.ledger.map(_HALF_BYTES)

    def note(self, topic: str, transaction_id: str, half: GrpcHalf) -> None:
        self._halves.pop((topic, transaction_id), None)
        while self._halves and not self._halves.offer((topic, transaction_id), half):
            del self._halves[next(iter(self._halves))]
        self._halves.offer((topic, transaction_id), half)

    def find(self, topic: str, transaction_id: str) -> GrpcHalf | None:
        return self._halves.get((topic, transaction_id))

    def forget(self, topic: str, transaction_id: str) -> None:
        self._halves.pop((topic, transaction_id), None)
