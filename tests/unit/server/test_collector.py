"""The garbage collector's pauses do not grow with the tables of a server, and garbage is still found."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mqspark.base.histogram import Histogram
from mqspark.broker.config import BrokerConfig
from mqspark.broker.tables.topics import Topic, Topics
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark_server.process.collector import LOADED_OBJECTS, YOUNG_OBJECTS, Collector
from tests.support.clocks import ManualClock

OBJECTS = 50_000


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@contextmanager
def collecting() -> Iterator[tuple[Collector, asyncio.AbstractEventLoop]]:
    loop = asyncio.new_event_loop()
    collector = Collector()
    collector.start(loop)
    try:
        yield collector, loop
    finally:
        collector.stop()
        loop.close()


@pytest.fixture(autouse=True)
def _thresholds_of_a_broker() -> Iterator[None]:
    """Python's own: the tests have larger ones, see tests/conftest.py."""
    usual = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*usual)
    gc.freeze()  # all tests, again: see tests/conftest.py


def visited() -> int:
    """How many objects the next collection visits."""
    return len(gc.get_objects(0))


def test_what_a_collection_has_visited_the_next_one_does_not_visit_again() -> None:
    with collecting():
        gc.disable()
        table = {number: [number] for number in range(OBJECTS)}
        assert visited() >= OBJECTS
        gc.enable()
        gc.collect(0)
        assert visited() < OBJECTS // 2
        del table
    assert gc.get_freeze_count() == 0


def test_a_collection_visits_what_is_new_alone() -> None:
    most = [0, 0, 0]

    def note(phase: str, info: dict[str, Any]) -> None:
        generation = info["generation"]
        if phase == "start":
            of_each = [len(gc.get_objects(each)) for each in range(generation + 1)]
            most[generation] = max(most[generation], sum(of_each))

    with collecting():
        gc.callbacks.append(note)
        try:
            table = {number: [number] for number in range(4 * OBJECTS)}
        finally:
            gc.callbacks.remove(note)
        assert len(table) == 4 * OBJECTS
    if sys.version_info < (3, 14):  # from there on it is incremental
        assert most[0] > 0 == max(most[1:])
    slack = 1000  # objects of the test itself
    assert max(most) <= YOUNG_OBJECTS + slack


def test_objects_that_live_for_a_read_cause_no_collection() -> None:
    begun: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        begun.append(info["generation"])

    with collecting():
        gc.collect(0)
        gc.callbacks.append(note)
        try:
            for _ in range(20):
                messages = [(number, [number]) for number in range(YOUNG_OBJECTS // 4)]
                del messages
        finally:
            gc.callbacks.remove(note)
    assert not begun


@pytest.mark.slow("millions of objects; the tests of what is visited beside it are the fast twins")
def test_garbage_among_what_was_set_aside_is_found_by_a_visit_of_all() -> None:
    with collecting() as (collector, _):
        ring = Ring()
        found = weakref.ref(ring)
        gc.collect(0)
        del ring
        gc.collect(0)
        assert found() is not None
        collector.visit_all()
        assert found() is None


QUIET, BUSY = 0.01, 0.9


def set_aside(count: int) -> list[Ring]:
    made = [Ring() for _ in range(count)]
    gc.collect(0)
    return made


def test_a_visit_of_all_is_due_when_as_many_objects_were_set_aside_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = 2_000
    monkeypatch.setattr("mqspark_server.process.collector.sys.getallocatedblocks", lambda: blocks)
    with collecting() as (collector, _):
        collector.due_objects, collector.due_blocks = 1_000, 1_000
        kept = set_aside(500)
        assert not collector.must_visit_all(QUIET)  # too few objects
        kept += set_aside(600)
        assert collector.must_visit_all(QUIET)
        assert not collector.must_visit_all(BUSY)
        blocks = 1_000
        assert not collector.must_visit_all(QUIET)  # no more memory: as many have gone
        blocks = 2_001
        kept += set_aside(1_000)
        assert collector.must_visit_all(BUSY)  # it has waited long enough
        collector.visit_all()
        assert not collector.must_visit_all(QUIET)


def test_tables_of_objects_that_are_never_visited_make_no_visit_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark_server.process.collector.sys.getallocatedblocks", lambda: 1 << 40)
    with collecting() as (collector, _):
        collector.due_objects = OBJECTS
        table = {number: f"{number}" for number in range(4 * OBJECTS)}
        gc.collect(0)
        assert not collector.must_visit_all(QUIET)
        assert len(table) == 4 * OBJECTS


def test_a_visit_of_all_leaves_out_the_program_and_what_was_loaded_after_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqspark_server.process.collector.CHECK_S", 0.001)
    before = len(gc.get_objects())
    with collecting() as (collector, loop):
        assert len(gc.get_objects()) < before // 10
        pages = [Ring() for _ in range(LOADED_OBJECTS // 4)]
        gc.collect(0)
        loop.run_until_complete(asyncio.sleep(0.01))
        assert len(gc.get_objects()) < len(pages)
        collector.visit_all()
        assert len(gc.get_objects()) < len(pages)


def test_garbage_of_right_after_the_start_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark_server.process.collector.CHECK_S", 0.001)
    with collecting() as (_, loop):
        ring = Ring()
        found = weakref.ref(ring)
        gc.collect(0)  # it goes to an older generation, and is garbage there
        del ring
        gc.collect(0)
        assert found() is not None
        loop.run_until_complete(asyncio.sleep(0.01))
        assert found() is None


def test_what_very_many_clients_have_brought_is_no_part_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqspark_server.process.collector.CHECK_S", 0.001)
    with collecting() as (collector, loop):
        clients = [Ring() for _ in range(OBJECTS)]
        found = weakref.ref(clients[0])
        loop.run_until_complete(asyncio.sleep(0.01))
        assert len(gc.get_objects()) > OBJECTS
        clients.clear()
        assert found() is not None
        collector.visit_all()
        assert found() is None


def test_a_loop_asks_again_and_again_whether_a_visit_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark_server.process.collector.CHECK_S", 0.001)
    with collecting() as (collector, loop):
        due = [True, False, True]
        over = asyncio.Event()

        def is_due(busy_share: float) -> bool:
            if not due:
                over.set()
            return bool(due) and due.pop()

        visits: list[None] = []
        monkeypatch.setattr(collector, "must_visit_all", is_due)
        monkeypatch.setattr(collector, "visit_all", lambda: visits.append(None))
        loop.run_until_complete(over.wait())
        assert len(visits) == 2


def test_a_collection_finds_nothing_to_visit_in_a_table_of_topics() -> None:
    topics = Topics(BrokerConfig(), ManualClock())
    gc.freeze()
    for number in range(2_000):
        topics.put(TopicConfig(topic_name=f"T{number:04d}"))
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, (Topic, TopicConfig, Histogram))]
    assert len(gc.get_objects()) < 200
