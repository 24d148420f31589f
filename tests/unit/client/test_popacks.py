"""How acknowledgements of popped messages are put together, without a broker."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

from mqspark.base.logs import Outages
from mqspark.client.pop.popacks import MAX_SPAN, PopAcks
from mqspark.errors import BrokerError
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.client_bodies import BatchAckMessageRequestBody
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.receipts import Receipt

ACK, BATCH_ACK, CHANGE = (
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)


class Wire:
    """What was asked of which broker; ``knows_batches`` False: the broker refuses them."""

    def __init__(self, *, knows_batches: bool = True) -> None:
        self.asked: list[tuple[str, int, Any]] = []
        self._knows_batches = knows_batches
        self.remoting = self
        self.outages = Outages(logging.getLogger(__name__))

    def failed(self, what: Hashable, error: Exception, text: str, *arguments: object) -> None:
        self.outages.failed(what, error, text, *arguments)

    def broker_address(self, name: str) -> str | None:
        return None if name == "gone" else f"at {name}"

    async def invoke(
        self, address: str, code: int, header: Any = None, body: bytes = b"", *, timeout_ms: int
    ) -> SimpleNamespace:
        if code == BATCH_ACK:
            if not self._knows_batches:
                raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no", address=address)
            self.asked.append((address, code, decode_body(BatchAckMessageRequestBody, body)))
        else:
            self.asked.append((address, code, header))
        return SimpleNamespace()


def receipt(offset: int, *, start: int = 100, broker: str = "b", retry: str = "0") -> Receipt:
    return Receipt(start, 1_000, 60_000, 3, retry, broker, 2, offset)


async def test_one_goes_alone() -> None:
    wire = Wire()
    acks = PopAcks(wire, "G")  # type: ignore[arg-type]
    acks.ack("T", receipt(100))
    await acks.stop()
    ((address, code, header),) = wire.asked
    assert (address, code) == ("at b", ACK)
    assert (header.topic, header.offset, header.queue_id, header.bname) == ("T", 100, 2, "b")
    assert header.extra_info == "100 1000 60000 3 0 b 2 100"


async def test_several_go_together_by_check_point() -> None:
    wire = Wire()
    acks = PopAcks(wire, "G")  # type: ignore[arg-type]
    for offset in (100, 101, 109):
        acks.ack("T", receipt(offset))
    acks.ack("%RETRY%G_T", receipt(7, start=5, retry="1"))
    acks.ack("T", receipt(100 + MAX_SPAN))  # its bits would be too many
    acks.ack("T", receipt(100, broker="c"))
    await acks.stop()
    batches = [body for _, code, body in wire.asked if code == BATCH_ACK]
    (batch,) = batches
    assert batch.broker_name == "b"
    assert [(e.topic, e.retry, e.start_offset, e.bit_set, e.revive_queue_id) for e in batch.acks] == [
        ("T", "0", 100, b"\x03\x02", 3),
        ("T", "1", 5, b"\x04", 3),
    ]
    singles = [(address, header.offset) for address, code, header in wire.asked if code == ACK]
    assert sorted(singles) == [("at b", 100 + MAX_SPAN), ("at c", 100)]


async def test_a_broker_without_batches_gets_them_one_by_one() -> None:
    wire = Wire(knows_batches=False)
    acks = PopAcks(wire, "G")  # type: ignore[arg-type]
    for offset in (100, 101):
        acks.ack("T", receipt(offset))
    await acks.stop()
    assert [(code, header.offset) for _, code, header in wire.asked] == [(ACK, 100), (ACK, 101)]


async def test_a_broker_that_is_gone_is_no_error() -> None:
    wire = Wire()
    acks = PopAcks(wire, "G")  # type: ignore[arg-type]
    acks.ack("T", receipt(100, broker="gone"))
    acks.put_off("T", receipt(101), 5_000)
    await acks.stop()
    ((_, code, header),) = wire.asked
    assert (code, header.invisible_time) == (CHANGE, 5_000)
