"""Power cuts in stores that were killed and stopped before, and under ASYNC_FLUSH."""

from __future__ import annotations

import random

import pytest

from tests.crash.power import (
    PARTS,
    Script,
    assert_images,
    assert_part,
    deletions,
    everyday,
    images,
    images_of_recovery,
    restarts,
)
from tests.support.draws import some

MORE = pytest.mark.slow("more images; the same with fewer is the fast twin")


@pytest.mark.parametrize("sync", some([True, False], 1))
@pytest.mark.parametrize(
    ("rounds", "limit", "at_least"), [(6, 2, 150), pytest.param(12, 16, 700, marks=MORE)]
)
def test_a_power_cut_between_restarts(sync: bool, rounds: int, limit: int, at_least: int) -> None:
    assert_images(restarts(sync, 1, rounds), limit, at_least=at_least)


@pytest.mark.slow("many images; test_a_power_cut_between_restarts is the fast twin")
@pytest.mark.parametrize(
    ("rounds", "limit", "at_least"), [(10, 2, 120), pytest.param(16, 16, 500, marks=MORE)]
)
def test_a_power_cut_under_async_flush(rounds: int, limit: int, at_least: int) -> None:
    """What was synced is there, and nothing else than what was sent."""
    assert_images(everyday(False, 2, rounds), limit, at_least=at_least)


@pytest.mark.slow(
    "many images; the power cut between restarts, and test_life.py without a cut, are the fast twins"
)
@pytest.mark.parametrize("sync", some([True, False], 1))
@pytest.mark.parametrize(("rounds", "limit", "at_least"), [(5, 2, 150), pytest.param(8, 12, 600, marks=MORE)])
def test_a_power_cut_while_topics_are_deleted_and_made_again(
    sync: bool, rounds: int, limit: int, at_least: int
) -> None:
    assert_images(deletions(sync, 1, rounds), limit, at_least=at_least)


@pytest.mark.slow("many images; that of test_power_cuts.py is the fast twin")
@pytest.mark.parametrize(("sample", "at_least"), [(3, 30), pytest.param(20, 250, marks=MORE)])
def test_a_second_power_cut_in_the_recovery_after_restarts(sample: int, at_least: int) -> None:
    script = restarts(True, 5, 8)
    chance = random.Random(5)
    firsts = list(images(script, 20, chance))
    assert_images(script, 12, at_least=at_least, found=(
        second for first in chance.sample(firsts, sample) for second in images_of_recovery(script, first, 12, chance)
    ))  # fmt: skip


@pytest.mark.night("400 images a sync; those of few are the fast twins")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [restarts, deletions])
@pytest.mark.parametrize("seed", range(20, 22))
@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("part", range(PARTS))
def test_every_subset_of_what_was_not_synced(kind: type[Script], sync: bool, seed: int, part: int) -> None:
    assert_part(kind(sync, seed, 20), part, at_least=5000)
