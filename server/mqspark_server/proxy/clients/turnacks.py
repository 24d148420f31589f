"""Acknowledgements of one message each that calls of one client bring in one turn. The broker is told them together,
and what one pop has handed out of one queue counts there once."""

from __future__ import annotations

from typing import Any, Protocol

from mqspark.base.logs import sparing
from mqspark.broker.pop.ackrun import AckedTogether, AckRun
from mqspark_server.proxy.backend import Link
from mqspark_server.proxy.content.grpcacks import AckedPop, SingleAck, ack_response, acknowledged
from mqspark_server.proxy.grpcstatus import ack_refusal

log = sparing("mqspark.grpc")


class AckCall(Protocol):
    """A call that waits for its acknowledgement (``GrpcCall``)."""

    def answer(self, response: bytes, /) -> None: ...
    def serve(self, request: Any, /) -> None: ...


class TurnAcks(AckRun):
    """Its numbers are those of the calls."""

    __slots__ = ("_calls", "_given", "_of_pops")

    def __init__(self) -> None:
        self._calls: list[AckCall] = []
        self._given: list[SingleAck] = []
        self._of_pops: dict[AckedPop, AckedTogether] = {}
        super().__init__(self._of_pops.values())

    def add(self, call: AckCall, given: SingleAck, pop: AckedPop, offset: int) -> None:
        of_pop = self._of_pops.get(pop)
        if of_pop is None:
            self._of_pops[pop] = AckedTogether(
                pop.stored_in, pop.group, pop.receipt, [len(self._calls)], [offset]
            )
        else:
            of_pop.numbers.append(len(self._calls))
            of_pop.offsets.append(offset)
        self._calls.append(call)
        self._given.append(given)

    def tell(self, link: Link, broker: str) -> None:
        """The turn ends: acknowledge them."""
        try:
            if not link.acknowledge(broker, self):
                for call, given in zip(self._calls, self._given, strict=True):
                    call.serve(given.whole)
                return
        except Exception as error:
            log.exception("acknowledgements failed")
            self.answers = dict.fromkeys(range(len(self._calls)), error)
            self.waiting, self.asked = [], 0
        if not self.waiting and not self.asked:
            self.done()

    def done(self) -> None:
        for number, (call, given) in enumerate(zip(self._calls, self._given, strict=True)):
            answer = self.answers.get(number) if self.answers else None
            if answer is None:
                call.answer(acknowledged(given.entry))
            else:
                refused = ack_response(given.whole.entries, [ack_refusal(answer).status])
                call.answer(refused.SerializeToString())
