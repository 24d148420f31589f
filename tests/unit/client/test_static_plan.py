"""Plans for static topics: who leads which logic queue, what moves, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mqspark.client.staticplan import (
    Configs,
    StaticTopicProblem,
    block_after,
    check,
    check_plan,
    complete,
    decide_offset,
    leaders,
    plan_growth,
    plan_move,
    plan_rest,
    undecided,
)
from mqspark.protocol.bodies.topic_bodies import LogicQueueMappingItem, TopicConfigAndQueueMapping

NOW = 1_700_000_000_000


def made(queues: int, *brokers: str) -> Configs:
    return plan_growth("T", queues, brokers, {}, NOW).broker_config_map


def parts(configs: Configs, name: str) -> dict[int, list[LogicQueueMappingItem]]:
    detail = configs[name].mapping_detail
    assert detail is not None
    return detail.hosted_queues


def test_queues_are_shared_and_new_ones_go_where_fewest_are() -> None:
    plan = plan_growth("T", 5, ["b", "a"], {}, NOW)
    assert (plan.type, plan.epoch) == ("CREATE_OR_UPDATE", NOW)
    assert leaders(plan.broker_config_map) == {0: "a", 1: "b", 2: "a", 3: "b", 4: "a"}
    assert plan.broker_config_map["a"].write_queue_nums == 3
    more = plan_growth("T", 7, ["c"], plan.broker_config_map, NOW)
    assert more.epoch == NOW + 1_000
    assert leaders(more.broker_config_map) == {0: "a", 1: "b", 2: "a", 3: "b", 4: "a", 5: "c", 6: "c"}
    assert leaders(plan.broker_config_map) == {
        0: "a",
        1: "b",
        2: "a",
        3: "b",
        4: "a",
    }  # not changed by the plan


@pytest.mark.parametrize(("queues", "text"), [(3, "Cannot decrease"), (4, "do nothing")])
def test_a_topic_does_not_shrink(queues: int, text: str) -> None:
    with pytest.raises(StaticTopicProblem, match=text):
        plan_growth("T", queues, ["a"], made(4, "a", "b"), NOW)


def test_a_move_is_even_and_moves_as_little_as_possible() -> None:
    configs = made(6, "a", "b")
    plan = plan_move("T", ["a", "b", "c"], configs, NOW)
    after = leaders(plan.broker_config_map)
    assert sorted(after.values()) == ["a", "a", "b", "b", "c", "c"]
    moved = [number for number, name in after.items() if leaders(configs)[number] != name]
    assert len(moved) == 2
    assert (plan.type, plan.broker_to_map_in, plan.broker_to_map_out) == ("REMAPPING", ["c"], ["a", "b"])
    for number in moved:
        old = leaders(configs)[number]
        assert parts(plan.broker_config_map, "c")[number] == parts(plan.broker_config_map, old)[number]
        before, new = parts(plan.broker_config_map, "c")[number]
        assert (before.bname, new.bname, new.gen, new.logic_offset) == (old, "c", 1, -1)
    assert plan_move("T", ["a", "b"], configs, NOW).broker_to_map_in == []


def test_the_new_part_begins_at_a_block_behind_the_old_one() -> None:
    plan = plan_move("T", ["b"], made(1, "a"), NOW)
    assert list(undecided(plan)) == [0]
    decide_offset(plan, 0, 12_345)
    assert undecided(plan) == {}
    for name in ("a", "b"):
        assert [item.logic_offset for item in parts(plan.broker_config_map, name)[0]] == [0, 20_000]
    back = plan_move("T", ["a"], plan.broker_config_map, NOW)
    decide_offset(back, 0, 7)
    items = parts(back.broker_config_map, "a")[0]
    assert [(item.bname, item.queue_id, item.logic_offset) for item in items] == [
        ("a", 0, 0),
        ("b", 0, 20_000),
        ("a", 1, 30_000),
    ]


@pytest.mark.parametrize(
    ("offset", "block"), [(0, 10_000), (4_999, 10_000), (5_000, 20_000), (9_999, 20_000), (10_000, 20_000)]
)
def test_blocks(offset: int, block: int) -> None:
    assert block_after(offset) == block


def test_other_brokers_learn_of_the_topic() -> None:
    plan = plan_growth("T", 2, ["a"], {}, NOW)
    complete(plan, ["a", "b"])
    other = plan.broker_config_map["b"]
    assert other.mapping_detail is not None
    assert (other.write_queue_nums, other.mapping_detail.total_queues) == (0, 2)
    check("T", plan.broker_config_map)


def test_parts_that_disagree_are_refused() -> None:
    configs = made(4, "a", "b")
    first = configs["a"].mapping_detail
    assert first is not None
    first.epoch += 1
    with pytest.raises(StaticTopicProblem, match="epoch does not match"):
        plan_move("T", ["a"], configs, NOW)
    first.epoch -= 1
    del first.hosted_queues[0]
    with pytest.raises(StaticTopicProblem, match="does not match the real hosted queues 4 != 3"):
        plan_move("T", ["a"], configs, NOW)
    with pytest.raises(StaticTopicProblem, match="Mapping info should not be null in broker a"):
        plan_growth("T", 4, ["a"], {"a": TopicConfigAndQueueMapping(topic_name="T")}, NOW)
    with pytest.raises(StaticTopicProblem, match="No topic route to do the remapping"):
        plan_move("T", ["a"], {}, NOW)
    shared = made(2, "a")
    parts(shared, "a")[1][0].queue_id = 0
    with pytest.raises(StaticTopicProblem, match="shared the same physical queue"):
        check("T", shared)


def test_the_rest_of_a_move_is_found_and_decided() -> None:
    configs = made(2, "a", "b")
    assert plan_rest("T", configs, NOW) is None
    torn = plan_move("T", ["b"], configs, NOW).broker_config_map
    rest = plan_rest("T", torn, NOW)
    assert rest is not None
    assert (rest.broker_to_map_in, rest.broker_to_map_out) == (["b"], ["a"])
    assert rest.epoch > NOW + 1_000
    assert [part.bname for part in undecided(rest).values()] == ["a"]
    decide_offset(rest, 0, 0)
    assert plan_rest("T", rest.broker_config_map, NOW) is None


def test_a_plan_that_leaves_a_queue_without_an_offset_is_refused() -> None:
    """Files of plans come from elsewhere."""
    plan = plan_move("T", ["b"], made(2, "a"), NOW)
    check_plan(plan)
    for new, old in ((["b"], []), ([], ["a"]), ([], [])):
        with pytest.raises(StaticTopicProblem, match="does not say that queue 0 moves to broker b"):
            check_plan(replace(plan, broker_to_map_in=new, broker_to_map_out=old))
    with pytest.raises(StaticTopicProblem, match="queues of broker c, but has no mapping"):
        check_plan(replace(plan, broker_to_map_in=["b", "c"]))


def test_a_topic_needs_brokers() -> None:
    with pytest.raises(StaticTopicProblem, match="Find none brokers"):
        plan_growth("T", 2, [], {}, NOW)
    with pytest.raises(StaticTopicProblem, match="Find none brokers"):
        plan_move("T", [], made(2, "a"), NOW)
