"""Which parts of a queue are put together, and what is left to an operator."""

from __future__ import annotations

import pytest

from mqspark.client.staticplan import (
    Configs,
    StaticTopicProblem,
    decide_offset,
    leaders,
    plan_growth,
    plan_move,
)
from mqspark.client.staticrepair import plan_repair
from mqspark.protocol.bodies.topic_bodies import LogicQueueMappingItem

NOW = 1_700_000_000_000


def torn() -> Configs:
    """A queue of a that two commands have moved to b and to c; a has heard of b."""
    made = plan_growth("T", 1, ["a"], {}, NOW).broker_config_map
    first, second = (plan_move("T", [name], made, NOW + 5_000).broker_config_map for name in "bc")
    return {"a": first["a"], "b": first["b"], "c": second["c"]}


def items(configs: Configs, name: str) -> list[LogicQueueMappingItem]:
    detail = configs[name].mapping_detail
    assert detail is not None
    return detail.hosted_queues[0]


def test_what_has_its_place_stays_and_the_other_part_comes_behind_it() -> None:
    configs = torn()
    with pytest.raises(StaticTopicProblem, match="duplicated"):
        leaders(configs)
    first = plan_repair("T", configs, NOW)
    assert first is not None
    assert (first.broker_to_map_in, first.broker_to_map_out) == (["b"], ["a"])
    decide_offset(first, 0, 7)
    configs |= first.broker_config_map
    second = plan_repair("T", configs, NOW)
    assert second is not None
    assert (second.broker_to_map_in, second.broker_to_map_out) == (["c"], ["b"])
    decide_offset(second, 0, 3)
    configs |= second.broker_config_map
    assert [(each.bname, each.gen, each.logic_offset) for each in items(configs, "c")] == [
        ("a", 0, 0), ("b", 1, 10_000), ("c", 2, 20_000),
    ]  # fmt: skip
    last = plan_repair("T", configs, NOW)
    assert last is not None
    assert not last.broker_to_map_in
    configs |= last.broker_config_map
    assert leaders(configs) == {0: "c"}
    assert plan_repair("T", configs, NOW) is None


def test_what_may_have_been_read_is_not_moved() -> None:
    configs = torn()
    items(configs, "b")[1].logic_offset, items(configs, "c")[1].logic_offset = 10_000, 30_000
    with pytest.raises(StaticTopicProblem, match="may have been read"):
        plan_repair("T", configs, NOW)
    configs = torn()
    items(configs, "b")[1].logic_offset = 10_000
    configs["a"].mapping_detail.hosted_queues[0] = [  # type: ignore[union-attr]
        items(configs, "a")[0],
        LogicQueueMappingItem(gen=1, queue_id=0, bname="b", logic_offset=20_000),
    ]
    with pytest.raises(StaticTopicProblem, match="begins at"):
        plan_repair("T", configs, NOW)


def test_brokers_that_agree_are_left_alone() -> None:
    made = plan_growth("T", 3, ["a", "b"], {}, NOW).broker_config_map
    assert plan_repair("T", made, NOW) is None
    with pytest.raises(StaticTopicProblem, match="No topic route"):
        plan_repair("T", {}, NOW)
