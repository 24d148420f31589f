"""Threat: a disk, a file system check, a person or another program damages a store, and the broker starts up as if
nothing were wrong: what is lost is not told, what the log could heal stays broken, offsets are given out twice.

Production defaults, but for the sizes of the files: damage to a segment of 1 GiB costs a test too much.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.errors import StoreCorrupt
from tests.security.store.damage_table import DAMAGE, MESSAGES, PAGE, expected, table
from tests.security.store.damaged_store import look, run_fsck
from tests.support.draws import some
from tests.support.store_tools import copy_store


@pytest.fixture
def damaged(sound_store: Path, tmp_path: Path, name: str) -> Path:
    root = tmp_path / "store"
    copy_store(sound_store, root)
    DAMAGE[name](root)
    return root


@pytest.mark.parametrize("name", some(DAMAGE, 16))
def test_a_start_heals_or_tells_it(damaged: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    want = expected(name)
    if want.refused:
        with pytest.raises((StoreCorrupt, OSError), match=want.refused):
            look(damaged)
        return
    seen = look(damaged)
    store = seen.health["store"]
    said = [f"{each['kind']} {each['outcome']}" for each in store["damage"]]
    assert tuple(sorted(set(said))) == want.start, store["damage"]
    assert seen.status == (503 if store["damageProblem"] else 200)
    assert (
        (store["damageProblem"] is None)
        or "log.damaged lost" in said
        or "log.gap lost" in said
        or ("log.segment-length lost" in said)
    )
    assert sum(store["damageCounts"].values()) == len(said) == sum(seen.metrics.values())
    assert {f"{kind} {outcome}" for kind, outcome in seen.metrics} == set(said)
    for each in store["damage"]:
        assert any(each["kind"] in line.getMessage() for line in caplog.records if line.levelname != "INFO")
    assert {tuple(queue.values()) for each in store["damage"] for queue in each["queues"]} == set(want.lost)
    low, high = want.gone
    assert seen.bodies == [*range(low), *range(high, MESSAGES)]
    assert (seen.offset, sum(seen.later.values()), len(seen.later)) == (want.offset, want.later, want.later)
    assert seen.next_offset == MESSAGES, "no offset is given out twice"


@pytest.mark.parametrize("name", some(DAMAGE, 12))
def test_fsck_finds_it_and_repairs_what_it_can(damaged: Path, name: str) -> None:
    want = expected(name)
    code, found = run_fsck(damaged)
    assert found == want.fsck
    assert code == (0 if all(each.startswith("note") for each in found) else 3)
    _, left = run_fsck(damaged, "--repair")
    assert left == want.repaired


def test_the_table_in_the_documentation_is_this_one() -> None:
    PAGE.check(table())
