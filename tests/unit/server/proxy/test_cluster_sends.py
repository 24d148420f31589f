"""Plain sends before a cluster: which topics are ready for them, and what their senders are told."""

from __future__ import annotations

import asyncio

import pytest

from mqspark.errors import ConnectionLost
from mqspark.protocol.bodies.topic_bodies import QueueData, TopicRouteData
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_response
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from mqspark_server.net.outbound import Outbound
from mqspark_server.proxy.backends.clusterroutes import Recent
from mqspark_server.proxy.backends.clustersends import ClusterSends
from mqspark_server.proxy.backends.readytopics import ReadyTopic, ReadyTopics
from tests.unit.outbound_kit import connected

READY = ReadyTopic("T", "NORMAL", 5, (("a", 2), ("b", 3)))


def queues(broker: str, count: int, perm: int = 6) -> QueueData:
    return QueueData(broker_name=broker, read_queue_nums=9, write_queue_nums=count, perm=perm)


class Sender:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.is_over = False

    def stored(self, queue_offset: int) -> None:
        self.told.append(queue_offset)

    def failed(self, code: int, remark: str) -> None:
        self.told.append((code, remark))

    def refused(self, error: Exception) -> None:
        self.told.append(type(error))

    def take_long_way(self) -> None:
        self.told.append("long way")


def test_a_topic_is_ready_once_its_route_and_its_type_are_known() -> None:
    async def scene() -> None:
        asked: list[str] = []

        async def route(name: str) -> TopicRouteData:
            asked.append(name)
            if name == "gone":
                raise ValueError(name)
            given = [queues("b", 3), queues("a", 2), queues("c", 0), queues("d", 4, perm=4)]
            return TopicRouteData(queue_datas=given)

        async def kind(name: str) -> str:
            return "NORMAL"

        routes = Recent[TopicRouteData](lambda name: asyncio.ensure_future(route(name)))
        types = Recent[str](lambda name: asyncio.ensure_future(kind(name)))
        ready = ReadyTopics(routes, types)
        assert ready.find("T") is None
        await routes.find("T")
        assert ready.find("T") is None
        await types.find("T")
        assert ready.find("T") == READY
        assert [READY.queue(number) for number in range(5)] == [
            *(("a", 0), ("a", 1)),
            *(("b", 0), ("b", 1), ("b", 2)),
        ]
        with pytest.raises(ValueError, match="gone"):
            await routes.find("gone")
        await types.find("gone")
        assert ready.find("gone") is None
        assert asked == ["T", "gone"]  # it asks nobody itself

    asyncio.run(scene())


def sends(connections: dict[str, Outbound]) -> ClusterSends:
    return ClusterSends(lambda name: READY if name == "T" else None, connections.get)


def test_what_a_sender_is_told() -> None:
    async def scene() -> None:
        outbound, wire = connected()
        way = sends({"b": outbound})
        assert way.topic("U") is None
        topic = way.topic("T")
        assert topic is not None
        assert (topic.message_type, topic.queues) == ("NORMAL", 5)
        senders = [Sender() for _ in range(5)]
        for number, sender in enumerate(senders[:4]):
            assert way.send(topic, 4, 17, f"UNIQ_KEY\x01{number}\x02", "", b"body", 0, sender)
        assert not way.send(topic, 0, 17, "", "", b"body", 0, senders[4])  # no connection to that broker
        await asyncio.sleep(0)
        assert len(wire.writes) == 1
        asked = wire.commands()
        assert {each.code for each in asked} == {RequestCode.SEND_MESSAGE_V2}
        header = asked[1].header(SendMessageRequestHeaderV2)
        assert (header.topic, header.queue_id, header.born_timestamp) == ("T", 2, 17)
        assert header.properties == "UNIQ_KEY\x011\x02"
        assert asked[1].body == b"body"
        place = {"msgId": "0" * 32, "queueId": "2", "queueOffset": "41"}
        outbound.data_received(encode_response(asked[0].opaque, 0, place))
        outbound.data_received(encode_response(asked[1].opaque, ResponseCode.SYSTEM_BUSY, remark="busy"))
        outbound.data_received(encode_response(asked[2].opaque, 0, {"queueOffset": "x"}))
        outbound.connection_lost(None)
        *told, malformed, lost, nothing = [each.told for each in senders]
        assert told == [[41], [(ResponseCode.SYSTEM_BUSY, "busy")]]
        assert len(malformed) == 1
        assert lost == [ConnectionLost]
        assert nothing == []

    asyncio.run(scene())


def test_a_sender_that_is_gone_is_told_nothing() -> None:
    async def scene() -> None:
        outbound, wire = connected()
        way, sender = sends({"b": outbound}), Sender()
        topic = way.topic("T")
        assert topic is not None
        assert way.send(topic, 4, 17, "", "", b"body", 0, sender)
        await asyncio.sleep(0)
        sender.is_over = True
        outbound.data_received(encode_response(wire.opaques()[0], ResponseCode.SYSTEM_BUSY))
        assert sender.told == []
        outbound.connection_lost(None)

    asyncio.run(scene())
