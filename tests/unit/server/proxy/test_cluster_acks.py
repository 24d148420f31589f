"""Acknowledgements of one call before a cluster: a request each, in one write, and one end."""

from __future__ import annotations

import asyncio

from mqspark.broker.pop.ackrun import AckedTogether, AckRun
from mqspark.errors import ConnectionLost
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_response
from mqspark.protocol.headers.client_headers import AckMessageRequestHeader
from mqspark.protocol.receipts import Receipt
from mqspark_server.proxy.backends.clusteracks import acknowledge
from tests.unit.outbound_kit import connected

POP = Receipt(0, 1_700_000_000_000, 60_000, 3, "0", "b", 2)


class Noted(AckRun):
    def __init__(self, ended: list[bool]) -> None:
        super().__init__(
            [AckedTogether("T", "g", POP, [4, 2], [5, 6]), AckedTogether("U", "g", POP, [0], [7])]
        )
        self._ended = ended

    def done(self) -> None:
        self._ended.append(True)


def test_what_is_known_at_once_is_no_end() -> None:
    """Whoever gives the acknowledgements sees it."""

    async def scene() -> None:
        outbound, wire = connected()
        wire.close()
        ended: list[bool] = []
        run = Noted(ended)
        acknowledge(outbound, run)
        assert (run.asked, ended) == (0, [])
        assert {type(each) for each in run.answers.values()} == {ConnectionLost}
        assert run.answers.keys() == {4, 2, 0}

    asyncio.run(scene())


def test_the_outcome_of_each() -> None:
    async def scene() -> None:
        outbound, wire = connected()
        ended: list[bool] = []
        run = Noted(ended)
        acknowledge(outbound, run)
        assert run.asked
        await asyncio.sleep(0)
        assert len(wire.writes) == 1
        asked = wire.commands()
        assert [each.code for each in asked] == [RequestCode.ACK_MESSAGE] * 3
        headers = [each.header(AckMessageRequestHeader) for each in asked]
        assert [(each.topic, each.queue_id, each.offset, each.bname) for each in headers] == [
            ("T", 2, 5, "b"),
            ("T", 2, 6, "b"),
            ("U", 2, 7, "b"),
        ]
        assert headers[1].extra_info == POP._replace(offset=6).encode()
        outbound.data_received(encode_response(asked[2].opaque, 0))
        outbound.data_received(encode_response(asked[0].opaque, ResponseCode.NO_MESSAGE, remark="none"))
        assert not ended
        outbound.connection_lost(None)
        assert ended == [True]
        assert not run.asked
        assert run.answers.keys() == {4, 2}
        assert getattr(run.answers[4], "code", None) == ResponseCode.NO_MESSAGE
        assert isinstance(run.answers[2], ConnectionLost)

    asyncio.run(scene())
