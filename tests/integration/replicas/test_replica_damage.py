"""One of three replicas comes back damaged, or older, or empty: nothing acknowledged is lost, no place gets a second
message, intact logs stay as they are, and the set serves again by itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.damagedset import IDS, ROLES, SCHEDULES, Case, Images, play
from tests.support.damages import KINDS, Around
from tests.support.draws import some
from tests.support.waiting import eventually

FEW = (
    ("flip queue id, last", "only it is down"),
    ("identity only", "it comes back with one"),
    ("older copy", "it comes back first"),
    ("epochs removed", "all come back together"),
)
"""In each run."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8")


def case_of(kind: str, schedule: str) -> Case:
    """Each kind has another role in each schedule."""
    number = list(KINDS).index(kind) + SCHEDULES.index(schedule)
    return Case(kind, schedule, *ROLES[number % len(ROLES)])


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images(tmp_path_factory.mktemp("images"))


def test_there_are_all_kinds_of_damage() -> None:
    assert len(KINDS) == 39
    assert {node for node, _ in ROLES} == {IDS[0], IDS[-1]}


def check(case: Case, images: Images, folder: Path) -> None:
    play(case, images, folder)
    print(f"{case.title}: served after {case.served_s:.1f} s, all three in sync after {case.whole_s:.1f} s")


@pytest.mark.parametrize(("kind", "schedule"), some(FEW, 1, several=True))
def test_a_damage_takes_nothing_from_the_others(
    kind: str, schedule: str, images: Images, tmp_path: Path
) -> None:
    check(case_of(kind, schedule), images, tmp_path)


@pytest.mark.slow("minutes for all; test_a_damage_takes_nothing_from_the_others has some of them")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_damage_takes_nothing_from_the_others(
    kind: str, schedule: str, images: Images, tmp_path: Path
) -> None:
    check(case_of(kind, schedule), images, tmp_path)


@pytest.mark.slow("a set of processes; tests/unit/broker/replication/test_loghealing.py is the fast twin")
def test_two_empty_replicas_wait_for_the_one_that_has_all(images: Images, tmp_path: Path) -> None:
    """And say why nobody leads."""
    image = images.led_by(IDS[0])
    empty, intact = (IDS[0], IDS[-1]), IDS[1]

    def says_why() -> bool:
        said = [replicas.said(node).read_text() for node in empty]
        return all("no member of its set" in text for text in said) and any(
            "does not elect a master" in text and f"not heard: {intact}" in text for text in said
        )

    with image.copied(tmp_path) as replicas:
        replicas.start_controller()
        replicas.start(*IDS)
        replicas.until_in_sync(IDS)
        replicas.kill(*IDS)
        for node in empty:
            around = Around(image.older(node), replicas.store(intact), image.end)
            KINDS["emptied"](replicas.store(node), around)
        with replicas.starting(*empty):
            eventually(says_why, lambda: replicas.said(empty[0]).read_text()[-2_000:], timeout_s=30)
            assert replicas.master() is None
            replicas.start(intact)
        replicas.send()
        replicas.check_messages(intact)
        assert replicas.master() == intact
