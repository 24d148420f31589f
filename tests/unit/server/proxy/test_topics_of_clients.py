"""The topics in the settings of a gRPC client: each of its heartbeats, of a few bytes, tells brokers all of them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpccalls import AT_ONCE, of_each
from mqspark_server.proxy.clients.grpcclients import MAX_TOPICS, check_size
from mqspark_server.proxy.grpcstatus import GrpcRefusal


def test_topics_of_a_client_are_bounded() -> None:
    many = [pb.Resource(name=f"{number:x}") for number in range(MAX_TOPICS)]
    publishing = pb.Settings(publishing=pb.Publishing(topics=many))
    consuming = pb.Settings()
    for topic in many:
        consuming.subscription.subscriptions.add(topic=topic)
    check_size(publishing)
    check_size(consuming)
    publishing.publishing.topics.add(name="more")
    consuming.subscription.subscriptions.add(topic=pb.Resource(name="more"))
    for settings in (publishing, consuming):
        with pytest.raises(GrpcRefusal, match=f"more than {MAX_TOPICS} topics"):
            check_size(settings)


async def test_parts_of_a_request_are_looked_at_between_the_turns_of_others() -> None:
    looked_at, seen = 0, list[int]()

    def look(number: int) -> int:
        nonlocal looked_at
        looked_at += 1
        return -number

    def turn() -> None:
        seen.append(looked_at)
        asyncio.get_running_loop().call_soon(turn)

    turn()
    found = await of_each(range(1_000), look)
    assert found == [-number for number in range(1_000)]
    assert max(after - before for before, after in pairwise(seen)) <= AT_ONCE
    assert len(seen) >= 1_000 // AT_ONCE
