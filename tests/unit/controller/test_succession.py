"""Who may become the master after starts, damage and older copies: positions and reports decide, not membership."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.protocol.codes import ResponseCode
from tests.unit.controller_kit import ControllerBench

Code = ResponseCode
DAMAGE = "the log was cut: its last 300 bytes are missing"
END = 1_000


@pytest.fixture
def bench(tmp_path: Path) -> ControllerBench:
    return lasting(ControllerBench(tmp_path / "c"))


def lasting(bench: ControllerBench) -> ControllerBench:
    """Three replicas that say which process they are; 1 is the master, and END is confirmed."""
    for broker_id in (1, 2, 3):
        bench.incarnations[broker_id] = f"first-{broker_id}"
        bench.join(broker_id)
    assert bench.elect(1).code == 0
    assert bench.alter(1, 1, {1, 2, 3}, 1, minInSyncReplicas=2, confirmOffset=10, confirmEpoch=1).code == 0
    for broker_id in (1, 2, 3):
        bench.heartbeat(broker_id, epoch=1, maxOffset=END, confirmOffset=END, confirmEpoch=1)
    assert bench.info() == (1, 1, {1, 2, 3}, 2)
    return bench


def all_die(bench: ControllerBench) -> None:
    for broker_id in (1, 2, 3):
        bench.die(broker_id)
    assert bench.info()[0] is None


def test_a_member_that_runs_on_is_elected_at_once(bench: ControllerBench) -> None:
    bench.die(1)
    assert bench.info()[0] == 2


def test_among_equals_the_one_without_damage_wins(bench: ControllerBench) -> None:
    bench.heartbeat(2, epoch=1, maxOffset=END + 5, damagedBytes=300)
    bench.die(1)
    assert bench.info()[0] == 3, "both have everything that is confirmed"
    all_die(bench)
    bench.restart(1, epoch=2, maxOffset=END, damagedBytes=1)
    bench.restart(2, epoch=2, maxOffset=END, damagedBytes=1)
    bench.restart(3, epoch=2, maxOffset=END)
    assert bench.elect(1).code in (0, Code.CONTROLLER_MASTER_STILL_EXIST)
    assert bench.info()[0] == 3


def test_damage_to_be_healed_is_better_than_a_shorter_log(bench: ControllerBench) -> None:
    all_die(bench)
    bench.restart(1, epoch=1, maxOffset=END + 5)
    bench.restart(3, epoch=1, maxOffset=END + 50, damagedBytes=300)
    assert bench.elect(1).code == 0
    assert bench.info()[0] == 3


def test_a_member_that_was_started_again_is_counted_in_anew(bench: ControllerBench) -> None:
    bench.restart(2, epoch=1, maxOffset=END)
    assert bench.info()[:3] == (1, 1, {1, 3})
    bench.die(1)
    assert bench.info()[0] == 3, "the one that ran on"
    assert bench.alter(3, bench.info()[1], {2, 3}, bench.info()[3]).code == 0
    bench.die(3)
    assert bench.info()[0] == 2, "it was counted in as it runs now"


def test_a_first_that_comes_back_waits_for_more_than_half(bench: ControllerBench) -> None:
    all_die(bench)
    bench.restart(1, epoch=1, maxOffset=END)
    refused = bench.elect(1)
    assert refused.code == Code.CONTROLLER_ELECT_MASTER_FAILED
    assert (refused.remark or "").endswith("sound, but too few: 1; not heard: 2, 3")
    bench.restart(3, epoch=1, maxOffset=END + 50)
    assert bench.elect(1).code == 0
    assert bench.info()[0] == 3, "the longer log"


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize(
    "ext",
    [
        {"epoch": 1, "maxOffset": END - 1},
        {"epoch": 0, "maxOffset": END + 500},
        {"epoch": -1, "maxOffset": 0},
        {"epoch": 1, "maxOffset": END, "damage": DAMAGE},
        {"epoch": 1, "maxOffset": END + 500, "damage": DAMAGE},
    ],
    ids=["short", "older epoch", "empty", "damaged", "damaged and longer"],
)
def test_a_damaged_or_older_copy_is_never_elected(
    bench: ControllerBench, first: int, ext: dict[str, object]
) -> None:
    all_die(bench)
    bench.restart(first, **ext)
    bench.advance(20_000, first)
    assert bench.info()[0] is None
    others = [each for each in (1, 2, 3) if each != first]
    bench.restart(others[0], epoch=1, maxOffset=END)
    assert bench.elect(first).code in (0, Code.CONTROLLER_ELECT_MASTER_FAILED)
    bench.restart(others[1], epoch=1, maxOffset=END)
    assert bench.elect(first).code in (0, Code.CONTROLLER_MASTER_STILL_EXIST)
    assert bench.info()[0] in others


def test_a_damaged_member_leaves_and_is_not_taken_back_before_it_is_whole(bench: ControllerBench) -> None:
    bench.heartbeat(2, epoch=1, maxOffset=END, damage=DAMAGE)
    _, _, members, set_epoch = bench.info()
    assert members == {1, 3}
    refused = bench.alter(1, 1, {1, 2, 3}, set_epoch)
    assert (refused.code, DAMAGE in (refused.remark or "")) == (Code.CONTROLLER_INVALID_REPLICAS, True)
    bench.heartbeat(2, epoch=1, maxOffset=END)
    assert bench.alter(1, 1, {1, 2, 3}, set_epoch).code == 0


def test_a_damaged_master_is_replaced_if_it_can_be(bench: ControllerBench) -> None:
    bench.heartbeat(1, epoch=1, maxOffset=END, damage=DAMAGE)
    assert bench.info()[0] == 2


def test_a_damaged_master_that_is_alone_stays(bench: ControllerBench) -> None:
    assert bench.alter(1, 1, {1}, 2, minInSyncReplicas=1).code == 0
    bench.heartbeat(1, epoch=1, maxOffset=END, damage=DAMAGE)
    assert bench.info()[:3] == (1, 1, {1})


def test_a_master_that_was_started_again_is_elected_like_others(bench: ControllerBench) -> None:
    bench.restart(1, epoch=1, maxOffset=END)
    assert bench.info()[0] == 2, "its connection had ended"


def test_the_process_of_a_master_changes_without_a_word(bench: ControllerBench) -> None:
    """Its old connection is still open, as after a power cut."""
    bench.incarnations[1] = "second-1"
    assert bench.register(1).code == 0
    assert bench.info()[0] == 2


def test_a_broker_alone_is_elected_again_after_a_start(tmp_path: Path) -> None:
    bench = ControllerBench(tmp_path)
    bench.incarnations[1] = "first"
    bench.join(1)
    assert bench.elect(1).code == 0
    bench.heartbeat(1, epoch=1, maxOffset=END, confirmOffset=END, confirmEpoch=1)
    bench.restart(1, epoch=1, maxOffset=END)
    assert bench.elect(1).code == 0
    bench.restart(1, epoch=1, maxOffset=END - 1)
    refused = bench.elect(1)
    assert (refused.code, "ends at 999" in (refused.remark or "")) == (
        Code.CONTROLLER_ELECT_MASTER_FAILED,
        True,
    )


def test_what_is_confirmed_outlives_the_controller(bench: ControllerBench) -> None:
    bench.advance(6_000, 1, 2, 3)
    all_die(bench)
    bench.reopen()
    bench.restart(1, epoch=1, maxOffset=END - 1)
    bench.restart(2, epoch=1, maxOffset=END - 1)
    assert bench.elect(1).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    bench.restart(3, epoch=1, maxOffset=END)
    assert bench.elect(3).code == 0
    assert bench.info()[0] == 3


def test_members_that_run_on_are_known_after_a_start_of_the_controller(bench: ControllerBench) -> None:
    bench.reopen()
    for broker_id in (2, 3):
        bench.heartbeat(broker_id, epoch=1, maxOffset=END)
    bench.advance(20_000, 2, 3)
    assert bench.info()[0] == 2


def test_who_had_everything_may_follow_a_master_that_was_alone(bench: ControllerBench) -> None:
    """A master that is elected is alone in the set, and acknowledges nothing before another one is counted in."""
    bench.die(1)
    assert bench.info()[:3] == (2, 2, {2})
    bench.restart(2, epoch=2, maxOffset=END, damage=DAMAGE)
    assert bench.info()[0] == 3, "it has had no message less than the master"


def test_who_was_left_out_follows_no_master_that_acknowledges_alone(bench: ControllerBench) -> None:
    assert bench.alter(1, 1, {1}, 2, minInSyncReplicas=1).code == 0
    bench.die(1)
    assert bench.info()[0] is None


def test_an_operators_word_says_what_is_lost(tmp_path: Path) -> None:
    bench = lasting(ControllerBench(tmp_path))
    all_die(bench)
    bench.restart(2, epoch=1, maxOffset=END - 300)
    refused = bench.elect(2, designate=True)
    assert refused.code == Code.CONTROLLER_ELECT_MASTER_FAILED
    assert "would lose 300 bytes that were acknowledged" in (refused.remark or "")
    bench.core.config.enable_elect_unclean_master = True
    answer = bench.elect(2, designate=True)
    assert (answer.code, answer.ext["uncleanEpoch"]) == (0, answer.ext["masterEpoch"])
    assert bench.info()[0] == 2
    bench.restart(2, epoch=3, maxOffset=END - 300)
    assert bench.elect(2).code == 0, "what is confirmed is measured by it from now on"


def test_an_operator_may_end_the_wait_for_others(bench: ControllerBench) -> None:
    all_die(bench)
    bench.restart(3, epoch=1, maxOffset=END)
    assert bench.elect(3).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    assert bench.elect(3, designate=True).code == 0
    assert bench.info()[0] == 3
