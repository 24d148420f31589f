"""Power cuts after a checkpoint between whose slices messages came and topics went: what it says is true nevertheless.

A slice that comes late sees more than the checkpoint is to say. A start after a power cut would take that for lost: it
would rebuild queues that are whole, or pass over offsets that were never given.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable

import pytest

from mqspark.store.disk.damage import Damage
from mqspark.store.disk.diskjobs import CheckpointJob
from mqspark.store.disk.layout import StorePaths
from mqspark.store.disk.notes.checkpoint import Checkpoint
from mqspark.store.upkeep import checkpoints
from tests.crash.disk import MemoryFiles
from tests.crash.power import BATCHES, QUEUES, ROOT, Script, assert_images, images, opened_image
from tests.support.store_tools import crash, maintain


@pytest.fixture(autouse=True)
def one_queue_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SLICE_QUEUES", 1)
    monkeypatch.setattr(checkpoints, "COUNTED_QUEUES", 1)


def sliced(script: Script, *between: Callable[[], object]) -> None:
    """A checkpoint, and these things in turn after its slices."""
    script.finish_deletions()
    script.store.clock.advance(60_000)
    things = itertools.cycle(between)
    jobs = [job for job in maintain(script.store) if isinstance(job, CheckpointJob)]
    assert len(jobs) == 1
    done = [next(things)() for _ in jobs[0].prepare()]
    assert len(done) >= len(between), "something was not done"
    jobs[0].run()
    jobs[0].done()
    assert script.store.status.checkpoint_problem is None


def arrivals(sync: bool, rounds: int) -> Script:
    """Queues grow, and get their first message, between slices: some of it is durable before the checkpoint is."""
    script = Script(sync, 5)
    unused = iter(QUEUES[2:])

    def durable() -> None:
        script.put()
        script.flush()

    def visible() -> None:
        script.put()
        script.commit()

    def first_one() -> None:
        queue = next(unused, QUEUES[0])
        script.put_inner_batch(2) if queue == BATCHES else script.put(queue=queue)
        script.commit()

    for number in range(rounds):
        for _ in range(3):
            script.put(queue=QUEUES[number % 2])
        script.put(queue=QUEUES[(number + 1) % 2])
        script.flush()
        sliced(script, *((first_one, visible) if number % 2 == 0 else (durable, first_one)))
    return script


def departures(sync: bool, rounds: int) -> Script:
    """Topics are deleted between slices, and made again."""
    script = Script(sync, 6)

    def again() -> None:
        script.put(queue=("Other", 0))
        script.commit()

    for number in range(rounds):
        for queue in QUEUES[:-1]:
            script.put(queue=queue)
        script.put_inner_batch(2)
        script.flush()
        sliced(script, lambda: script.delete_topic("Other"), *((again,) if number % 2 else ()), script.commit)
        script.put()
        script.flush()
    return script


ALARMS = {"queue.lost", "queue.short", "queue.long", "queue.file-gone"}
"""What a start finds where a checkpoint and the queues disagree."""
GAP = re.compile(r"queue (.*)/(.*): one of its files is missing; rebuilt from (.*) on")


def is_newer(script: Script, damage: Damage, position: int) -> bool:
    """Whether it is a file that no checkpoint up to ``position`` speaks of: the name of the one behind it may survive a
    power cut that takes its own."""
    found = GAP.fullmatch(damage.text)
    sent = script.sent.get((found[1], int(found[2]), int(found[3])), ()) if found else ()
    return any(each.position >= position for each in sent)


ROUNDS = [3, pytest.param(7, marks=pytest.mark.slow("the same with more rounds"))]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("sync", [True, False])
def test_a_late_slice_says_nothing_of_what_came_late(sync: bool, rounds: int) -> None:
    script = arrivals(sync, rounds)
    assert_images(script, 4, at_least=60)
    for image in images(script, 4, random.Random(5)):
        files, paths = MemoryFiles(ROOT, image.tree), StorePaths(ROOT)
        position = Checkpoint.load(paths.checkpoint, paths.mark, files).position
        store, _ = opened_image(script, files)
        alarms = [each for each in store.damages.found if each.kind in ALARMS]
        assert all(is_newer(script, each, position) for each in alarms), f"event {image.event}: {alarms}"
        crash(store)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("sync", [True, False])
def test_a_topic_is_deleted_between_slices(sync: bool, rounds: int) -> None:
    assert_images(departures(sync, rounds), 4, at_least=60)
