"""Power cuts in everyday work under SYNC_FLUSH: nothing acknowledged is lost (``disk.py`` says what a disk may do).

Together with ``test_power_cuts_restarts.py`` some 2,000 images in `make test`.
"""

from __future__ import annotations

import random

import pytest

from tests.crash.disk import Tree
from tests.crash.power import (
    BATCHES,
    PARTS,
    QUEUES,
    Script,
    assert_images,
    assert_part,
    everyday,
    images,
    images_of_recovery,
    retention,
)
from tests.support.draws import some


def test_the_script_crosses_every_kind_of_roll() -> None:
    """Else the images would prove less than they seem to."""
    script = everyday(True, 1, 30)
    log, index = script.store.log, script.store.index
    assert len(log.segments) > 3
    assert max(len(queue.file_starts) for queue in script.store.table.queues.values()) > 1
    batches = script.store.batch_table.batch_queues[BATCHES].array
    assert len(batches.file_starts) > 1
    assert batches.max_offset < script.store.offsets.max_offset(*BATCHES), (
        "some records hold several messages"
    )
    assert len(index.index_files) > 1
    assert script.files.read(script.store.paths.mark) is not None
    assert script.config_number > 2


MORE = pytest.mark.slow("more images; the same with fewer is the fast twin")


@pytest.mark.parametrize("lost", some(["consumequeue/Orders/0", "consumequeue/Orders", "consumequeue"], 1))
def test_a_power_cut_while_lost_queues_are_rebuilt(lost: str) -> None:
    """Retention has deleted their records: where they ended, the store knows from its notes alone."""
    script = Script()
    for queue in QUEUES * 6:
        script.put(300, queue)
    for _ in range(3):
        for _ in range(12):
            script.put(600, ("Other", 0))
        script.flush()
        script.checkpoint()
        script.delete_oldest()
    script.stop()
    assert script.store.offsets.min_offset("Orders", 0) == script.store.offsets.max_offset("Orders", 0) > 4
    (image,) = images(script, 1, random.Random(1), first_event=len(script.files.events))
    *above, name = lost.split("/")
    directory: Tree = image.tree
    for each in above:
        child = directory[each]
        assert isinstance(child, dict)
        directory = child
    del directory[name]
    assert_images(script, 4, at_least=12, found=images_of_recovery(script, image, 4, random.Random(1)))


@pytest.mark.parametrize(
    ("seed", "rounds", "limit", "at_least"),
    [(1, 12, 2, 140), *(pytest.param(seed, 16, 16, 480, marks=MORE) for seed in (1, 2, 3))],
)
def test_a_power_cut_at_any_sync(seed: int, rounds: int, limit: int, at_least: int) -> None:
    assert_images(everyday(True, seed, rounds), limit, at_least=at_least)


VARIANTS = {
    "ext": {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 4096},
    "sealed": {"enabled_append_prop_crc": True},
    "two directories": {"store_path_commit_log": "/disk/first,/disk/second"},
}


@pytest.mark.slow("many images; test_a_power_cut_at_any_sync is the fast twin")
@pytest.mark.parametrize("name", some(VARIANTS, 1))
@pytest.mark.parametrize(("rounds", "limit", "at_least"), [(6, 2, 70), pytest.param(10, 12, 300, marks=MORE)])
def test_a_power_cut_with_other_files(name: str, rounds: int, limit: int, at_least: int) -> None:
    assert_images(everyday(True, 6, rounds, **VARIANTS[name]), limit, at_least=at_least)


@pytest.mark.slow("many images; test_a_power_cut_at_any_sync is the fast twin")
@pytest.mark.parametrize(
    ("rounds", "limit", "at_least"), [(12, 2, 170), pytest.param(16, 16, 520, marks=MORE)]
)
def test_a_power_cut_while_old_segments_are_deleted(rounds: int, limit: int, at_least: int) -> None:
    assert_images(retention(True, 1, rounds), limit, at_least=at_least)


@pytest.mark.parametrize(("sample", "at_least"), [(3, 45), pytest.param(20, 300, marks=MORE)])
def test_a_second_power_cut_in_the_recovery(sample: int, at_least: int) -> None:
    script = everyday(True, 4, 12)
    chance = random.Random(4)
    firsts = list(images(script, 20, chance))
    assert_images(script, 12, at_least=at_least, found=(
        second for first in chance.sample(firsts, sample) for second in images_of_recovery(script, first, 12, chance)
    ))  # fmt: skip


@pytest.mark.night("400 images a sync; those of few are the fast twins")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [everyday, retention])
@pytest.mark.parametrize("seed", range(10, 12))
@pytest.mark.parametrize("part", range(PARTS))
def test_every_subset_of_what_was_not_synced(kind: type[Script], seed: int, part: int) -> None:
    """All of them where they are no more than 400 for a sync, else as many of them."""
    assert_part(kind(True, seed, 30), part, at_least=6000)
