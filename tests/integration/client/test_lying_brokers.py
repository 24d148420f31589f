"""Brokers that answer with what was not asked for: scripted servers over real sockets, one process."""

from __future__ import annotations

import pytest

from mqspark.aio import AdminClient
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.record import encode_record
from tests.support.scripted import Answer, Scripted, cluster

pytestmark = pytest.mark.anyio


async def test_a_look_up_returns_what_was_asked_for_of_all_that_have_the_hash() -> None:
    """RocketMQ's index does not compare."""
    found = [
        ("BBTopic", b"KEYS\x01Aa\x02TAGS\x01Aa\x02"),
        ("BBTopic", b"KEYS\x01BB\x02TAGS\x01BB\x02UNIQ_KEY\x01BB\x02"),
        ("AaTopic", b"KEYS\x01Aa\x02TAGS\x01Aa\x02UNIQ_KEY\x01BBBB\x02"),
        ("AaTopic", b"KEYS\x01one BB\x02TAGS\x01BB\x02UNIQ_KEY\x01BB\x02"),
    ]
    body = b"".join(
        encode_record(topic=topic, body=b"%d" % number, properties=properties, store_timestamp_ms=number)
        for number, (topic, properties) in enumerate(found)
    )

    def script(command: Command) -> Answer:
        return 0, {}, body if command.code == RequestCode.QUERY_MESSAGE else b""

    async with cluster(a=Scripted(script)) as address, AdminClient(address) as admin:
        assert [each.body for each in await admin.messages_by_key("AaTopic", "BB")] == [b"3"]
        assert [each.body for each in await admin.messages_by_key("AaTopic", "BB", unique=True)] == [b"3"]
        assert [each.body for each in await admin.messages_by_tag("AaTopic", "Aa")] == [b"2"]
        assert await admin.messages_by_key("AaTopic", "AaBB") == []
