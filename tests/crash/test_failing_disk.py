"""Each call that changes something fails once, at each place of a scripted run: nothing acknowledged is lost.

After the fault the disk is sound again, as a disk after a reset is: what counts is that nobody trusts it too soon.
A failed sync leaves pages that look synced and are not (``disk.py``), also to the process that starts next.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter

import pytest

from mqspark.errors import StoreReadOnly
from tests.crash.power import QUEUES, Script, check, describe, images, run_everyday
from tests.support.draws import some
from tests.support.store_tools import drain, put

ROUNDS = 10
VERBS = ("write", "sync", "sync_directory", "set_length", "allocate", "create", "open", "map_write", "rename",
         "make_directory")  # fmt: skip


class Fault:
    """The n-th call of a verb fails (with ``for_ever`` all that follow, too, until it is healed)."""

    def __init__(self, verb: str, number: int, error: int, *, for_ever: bool = False) -> None:
        self.verb, self.number, self.error, self.for_ever = verb, number, error, for_ever
        self.calls: Counter[str] = Counter()
        self.happened = False

    def __call__(self, verb: str) -> None:
        self.calls[verb] += 1
        if verb == self.verb and (
            self.calls[verb] == self.number or (self.for_ever and self.calls[verb] > self.number)
        ):
            self.happened = True
            raise OSError(self.error, os.strerror(self.error))


def calls_of_a_sound_run(seed: int) -> Counter[str]:
    counter = Fault("", 0, 0)
    script = Script(seed=seed)
    script.files.fault = counter
    run_everyday(script, seed, ROUNDS)
    return counter.calls


def run_with(fault: Fault, seed: int, images_each: int, *, sync: bool = True) -> Script:
    script = Script(sync, seed, tolerant=True)
    script.files.fault = fault
    run_everyday(script, seed, ROUNDS)
    assert fault.happened
    script.files.fault = None
    store = script.store
    scrubbed = store.upkeep.scrub.problem
    reasons = [*script.told, store.condition.read_only, store.status.index_problem, scrubbed]
    if fault.error == errno.ENOSPC and fault.verb not in ("write", "sync", "sync_directory"):
        assert store.condition.read_only is None, "a full disk is no reason to stop"
    if store.condition.read_only is not None:
        assert_poisoned(script)
    # For want of space less was reserved than might have been, that is all.
    is_less_room = (fault.verb, fault.error) == ("allocate", errno.ENOSPC)
    assert is_less_room or any(os.strerror(fault.error) in str(reason) for reason in reasons), reasons
    for topic, queue_id in QUEUES:
        for message in drain(store, topic, queue_id):
            place = (topic, queue_id, message.queue_offset)
            assert any(s.body == message.body for s in script.sent[place])
    check_images(script, images_each)
    # The next process sees what the page cache has; what it shows and promises has to be true after a power cut.
    script.tolerant = False
    script.kill()
    assert script.store.condition.read_only is None
    for _ in range(3):
        script.put()
        script.flush()
    check_images(script, images_each)
    return script


def assert_poisoned(script: Script) -> None:
    store = script.store
    acked = store.pipeline.commit().acked
    for _ in range(2):
        with pytest.raises(StoreReadOnly):
            put(store, "Orders", 0, b"never")
        progress = store.pipeline.commit()
        assert (progress.acked, progress.arrivals, progress.failed) == (acked, [], store.condition.read_only)
        assert store.pipeline.begin_flush() is None, "a failed range is not synced a second time"
        assert store.maintenance() == []


def check_images(script: Script, count: int) -> None:
    """What a kill leaves now, and some of what a power cut may leave."""
    script.files.note(None)  # stores into mappings are seen with the next event
    for image in images(script, count, random.Random(script.seed), first_event=len(script.files.events)):
        try:
            check(script, image)
        except Exception as error:
            raise AssertionError(f"{error}\n{script.told}\n{describe(image, script)}") from error


def positions(verb: str, seed: int, sample: int) -> list[int]:
    count = calls_of_a_sound_run(seed)[verb]
    everywhere = range(1, count + 1)
    return sorted(random.Random(seed).sample(everywhere, min(sample, count)))


ERRORS = [(verb, errno.EIO) for verb in VERBS] + [
    (verb, errno.ENOSPC) for verb in VERBS if verb not in ("open", "map_write")
]


@pytest.mark.parametrize(
    "places", [2, pytest.param(5, marks=pytest.mark.slow("more places; 2 is the fast twin"))]
)
@pytest.mark.parametrize(("verb", "error"), some(ERRORS, 5, several=True), ids=str)
def test_a_call_that_fails_once(verb: str, error: int, places: int) -> None:
    for number in positions(verb, 1, places):
        run_with(Fault(verb, number, error), 1, 4)


@pytest.mark.parametrize("verb", ["write", "sync"])
def test_under_async_flush(verb: str) -> None:
    for number in positions(verb, 1, 6):
        run_with(Fault(verb, number, errno.EIO), 1, 4, sync=False)


@pytest.mark.night("every place; a sample is the fast twin")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "from_then_on"])
@pytest.mark.parametrize(("verb", "error"), ERRORS, ids=str)
def test_a_call_that_fails_at_every_place(verb: str, error: int, for_ever: bool) -> None:
    for number in positions(verb, 2, 1 << 20):
        run_with(Fault(verb, number, error, for_ever=for_ever), 2, 24)
