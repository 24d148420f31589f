"""Acknowledgements of one call for one broker of a cluster: a request each, and one end for all."""

from __future__ import annotations

from mqspark.broker.pop.ackrun import AckRun
from mqspark.errors import MQError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import AckMessageRequestHeader
from mqspark_server.net.outbound import Outbound
from mqspark_server.proxy.backend import ANSWER_TIMEOUT_S

_ACK = int(RequestCode.ACK_MESSAGE)
_SUCCESS = int(ResponseCode.SUCCESS)


def acknowledge(connection: Outbound, run: AckRun) -> None:
    """``run`` is done when all are answered, or it is known that they are not."""
    run.asked = 1  # until all are asked: a connection that is lost answers at once
    for topic, group, receipt, numbers, offsets in run.acks:
        pop = receipt.encode()
        for number, offset in zip(numbers, offsets, strict=True):
            header = AckMessageRequestHeader(
                consumer_group=group,
                topic=topic,
                queue_id=receipt.queue_id,
                extra_info=f"{pop} {offset}",
                offset=offset,
                bname=receipt.broker_name,
            )
            waiting = _Acknowledgement(run, number)
            run.asked += 1
            try:
                connection.ask(waiting, _ACK, header, b"", timeout_s=ANSWER_TIMEOUT_S)
            except (ValueError, MQError) as error:
                waiting.set_exception(error)
    run.asked -= 1


class _Acknowledgement:
    """What waits for the answer to one of them (``outbound.Waiting``)."""

    __slots__ = ("_number", "_run")

    def __init__(self, run: AckRun, number: int) -> None:
        self._run = run
        self._number = number

    def done(self) -> bool:
        return False

    def set_result(self, answer: Command) -> None:
        self._end(None if answer.code == _SUCCESS else answer)

    def set_exception(self, error: Exception) -> None:
        self._end(error)

    def _end(self, refused: Command | Exception | None) -> None:
        run = self._run
        if refused is not None:
            run.answers[self._number] = refused
        run.asked -= 1
        if not run.asked:
            run.done()
