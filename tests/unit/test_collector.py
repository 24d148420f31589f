"""The garbage collector's pauses do not grow with the tables of a server, and garbage is still found."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mqspark_server.collector import Collector

OBJECTS = 50_000


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@contextmanager
def collecting() -> Iterator[Collector]:
    loop = asyncio.new_event_loop()
    collector = Collector()
    collector.start(loop)
    try:
        yield collector
    finally:
        collector.stop()
        loop.close()


def visited() -> int:
    """How many objects the next full collection visits."""
    return len(gc.get_objects())


def test_what_a_full_collection_has_visited_it_does_not_visit_again() -> None:
    with collecting():
        table = {number: [number] for number in range(OBJECTS)}
        assert visited() >= OBJECTS
        gc.collect()
        assert visited() < OBJECTS // 2
        del table
    assert gc.get_freeze_count() == 0


def test_garbage_among_what_was_set_aside_is_found_by_a_visit_of_all() -> None:
    with collecting() as collector:
        ring = Ring()
        found = weakref.ref(ring)
        gc.collect()
        del ring
        gc.collect()
        assert found() is not None
        collector.visit_all()
        assert found() is None


def test_a_visit_of_all_is_due_when_the_process_has_twice_as_many_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqspark_server.collector.CHECK_S", 0.001)
    blocks = 10_000_000
    monkeypatch.setattr("mqspark_server.collector.sys.getallocatedblocks", lambda: blocks)
    loop = asyncio.new_event_loop()
    collector = Collector()
    collector.start(loop)
    ring = Ring()
    found = weakref.ref(ring)
    gc.collect()
    del ring
    loop.run_until_complete(asyncio.sleep(0.05))
    assert found() is not None
    blocks *= 4
    loop.run_until_complete(asyncio.sleep(0.05))
    assert found() is None
    collector.stop()
    loop.close()
