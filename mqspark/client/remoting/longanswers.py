"""Answers with very many entries, read part by part: whoever shares the client's loop is served between two."""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from typing import TypeVar

from mqspark.protocol.bodies.body import Body, decode_body
from mqspark.protocol.bodies.longtables import (
    PART_BYTES,
    Parts,
    copied,
    decode_long,
    parts_of_names,
    parts_of_table,
    read_parts,
)
from mqspark.protocol.bodies.topic_bodies import TopicList
from mqspark.protocol.slices import Work

T = TypeVar("T")
B = TypeVar("B", bound=Body)
MERGED_AT_ONCE = 1_024
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
    text = await _in_turns(copied(body))
    if len(text) > PART_BYTES:
        text = await _in_turns(read_parts(take_apart(text, member), read))
    read(text)


async def _in_turns(work: Work[T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as end:
            done: T = end.value
            return done
        await asyncio.sleep(0)


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


async def decoded_in_turns(body_type: type[B], body: bytes | memoryview, member: str) -> B:
    """A body whose list ``member`` may be long. Raises ProtocolError and IllegalName."""
    return await _in_turns(decode_long(body_type, body, member))


def near(names: list[str], name: str) -> list[str]:
    """Those of many names in their order that stand next to one: they begin like it."""
    at = bisect(names, name)
    return names[max(0, at - COMPARED // 2) : at + COMPARED // 2]
