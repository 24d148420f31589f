"""Answers with very many entries, read part by part: whoever shares the client's loop is served between two."""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice

from mqspark.protocol.bodies.body import decode_body, decode_nameless
from mqspark.protocol.bodies.client_bodies import ConsumerConnection
from mqspark.protocol.bodies.longtables import (
    PART_BYTES,
    Parts,
    parts_of_names,
    parts_of_table,
    read_parts,
)
from mqspark.protocol.bodies.topic_bodies import TopicList
from mqspark.protocol.named import check_names

MERGED_AT_ONCE = 1_024
CHECKED_AT_ONCE = 256
"""Clients of which the names are checked in one turn: several times what it takes to decode them."""
COMPARED = 512
"""Names that are compared with one that does not exist: each takes microseconds."""


async def read_in_turns(
    body: bytes | memoryview,
    member: str,
    read: Callable[[bytes], None],
    take_apart: Callable[[bytes, str], Parts] = parts_of_table,
) -> None:
    """Read a body, part by part if it is long. ``read`` gets bodies with some of the entries of ``member``, and one
    with all the rest."""
    text = bytes(body)
    if len(text) > PART_BYTES:
        reading = read_parts(take_apart(text, member), read)
        while True:
            try:
                next(reading)
            except StopIteration as end:
                text = end.value
                break
            await asyncio.sleep(0)
    read(text)


async def merged(runs: Iterable[list[str]]) -> list[str]:
    """The names of sorted lists in their order."""
    names: list[str] = []
    in_order = merge(*runs)
    while some := list(islice(in_order, MERGED_AT_ONCE)):
        names += some
        await asyncio.sleep(0)
    return names


async def topic_names(body: bytes | memoryview) -> list[str]:
    """The topics of a list, in order. Raises ProtocolError."""
    runs: list[list[str]] = []

    def read(part: bytes) -> None:
        runs.append(sorted(decode_body(TopicList, part).topic_list))

    await read_in_turns(body, "topicList", read, parts_of_names)
    return await merged(runs)


async def clients_of_group(body: bytes | memoryview) -> ConsumerConnection:
    """The members of a group, and what they read. Raises ProtocolError and IllegalName."""
    found = decode_nameless(ConsumerConnection, body)
    clients, found.connection_set = found.connection_set, []
    check_names(found)
    for first in range(0, len(clients), CHECKED_AT_ONCE):
        check_names(ConsumerConnection(connection_set=clients[first : first + CHECKED_AT_ONCE]))
        await asyncio.sleep(0)
    found.connection_set = clients
    return found


def near(names: list[str], name: str) -> list[str]:
    """Those of many names in their order that stand next to one: they begin like it."""
    at = bisect(names, name)
    return names[max(0, at - COMPARED // 2) : at + COMPARED // 2]
