"""How the queues of a static topic are shared among brokers: plans to make one, to add queues and to move queues
(TopicQueueMappingUtils).

A plan contains the mapping that each broker will get. This module is pure: ``statictopics`` asks the brokers and
carries plans out. Errors are RocketMQ's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from mqspark.errors import MQError
from mqspark.protocol.bodies.topic_bodies import (
    LogicQueueMappingItem,
    TopicConfigAndQueueMapping,
    TopicQueueMappingDetail,
    TopicRemappingDetailWrapper,
)

BLOCK = 10_000
"""Logic offsets that a moved queue skips are a multiple of this."""
EPOCH_STEP = 1_000
CREATE_OR_UPDATE, REMAPPING = "CREATE_OR_UPDATE", "REMAPPING"

Configs = dict[str, TopicConfigAndQueueMapping]
"""Broker name → its part of the topic."""


class StaticTopicProblem(MQError):
    """The brokers' parts of a topic are inconsistent, or do not allow the requested change."""


def detail_of(name: str, config: TopicConfigAndQueueMapping) -> TopicQueueMappingDetail:
    """Raises StaticTopicProblem for a topic that is not a static one."""
    if config.mapping_detail is None:
        raise StaticTopicProblem(
            f"Mapping info should not be null in broker {name}: {config.topic_name} is no static topic there"
        )
    return config.mapping_detail


def check(topic: str, configs: Mapping[str, TopicConfigAndQueueMapping]) -> None:
    """Raises StaticTopicProblem unless the parts agree, and every logic queue has one leader and physical queues of its
    own."""
    agreed: tuple[str, int, int] | None = None
    for name, config in configs.items():
        detail = detail_of(name, config)
        if detail.bname != name:
            raise StaticTopicProblem(f"The broker name is not equal {name} != {detail.bname} ")
        if detail.dirty:
            raise StaticTopicProblem(f"The mapping info is dirty in broker  {name}")
        if config.topic_name != detail.topic or detail.topic != topic:
            raise StaticTopicProblem(f"The topic name is inconsistent in broker  {name}")
        told = detail.scope, detail.epoch, detail.total_queues
        for word, before, now in zip(
            ("scope", "epoch", "total queue number"), agreed or told, told, strict=True
        ):
            if before != now:
                raise StaticTopicProblem(f"{word} does not match {before} != {now} in {name}")
        agreed = told
    found = leaders(configs)
    total = 0 if agreed is None else agreed[2]
    if sorted(found) != list(range(total)):
        raise StaticTopicProblem(
            f"The total queue number in config does not match the real hosted queues {total} != {len(found)}"
        )
    _check_physical(configs, found)


def _check_physical(configs: Mapping[str, TopicConfigAndQueueMapping], found: Mapping[int, str]) -> None:
    users: dict[tuple[str | None, int], int] = {}
    for number, leader in found.items():
        for item in detail_of(leader, configs[leader]).hosted_queues[number]:
            first = users.setdefault((item.bname, item.queue_id), number)
            if first != number:
                raise StaticTopicProblem(
                    f"global queue id {number} and {first} shared the same physical queue {item.bname}-{item.queue_id}"
                )
            config = configs.get(item.bname or "")
            if config is None:
                raise StaticTopicProblem("The broker of item does not exist")
            if item.queue_id >= config.write_queue_nums:
                raise StaticTopicProblem("The physical queue id is overflow the write queues")


def check_plan(plan: TopicRemappingDetailWrapper) -> None:
    """Raises StaticTopicProblem unless the parts agree, and the brokers that take and give queues are those of the
    parts: a queue would be left without an offset, and nobody could send to it."""
    configs, new, old = plan.broker_config_map, plan.broker_to_map_in, plan.broker_to_map_out
    check(plan.topic, configs)
    for name in (*new, *old):
        if name not in configs:
            raise StaticTopicProblem(f"The plan moves queues of broker {name}, but has no mapping for it")
    for number, name in leaders(configs).items():
        items = detail_of(name, configs[name]).hosted_queues[number]
        if len(items) > 1 and items[-1].logic_offset < 0 and (name not in new or items[-2].bname not in old):
            raise StaticTopicProblem(f"The plan does not say that queue {number} moves to broker {name}")


def leaders(configs: Mapping[str, TopicConfigAndQueueMapping]) -> dict[int, str]:
    """The broker that leads each logic queue, in the order of the queues."""
    found: dict[int, str] = {}
    for name, config in configs.items():
        for number, items in detail_of(name, config).hosted_queues.items():
            _check_items(items)
            if items[-1].bname != name:
                continue
            if number in found:
                raise StaticTopicProblem(f"The queue id is duplicated in broker {found[number]} {name}")
            found[number] = name
    return dict(sorted(found.items()))


def _check_items(items: list[LogicQueueMappingItem]) -> None:
    if not items:
        raise StaticTopicProblem("a queue has no items")
    for before, item in itertools.pairwise(items):
        if before.logic_offset < 0:
            raise StaticTopicProblem("The non-latest item has negative logic offset")
        if item.gen <= before.gen:
            raise StaticTopicProblem("The gen does not increase monotonically")
        if 0 <= item.logic_offset <= before.logic_offset:
            raise StaticTopicProblem("The base logic offset does not increase monotonically")


def plan_growth(
    topic: str,
    queues: int,
    targets: Collection[str],
    configs: Mapping[str, TopicConfigAndQueueMapping],
    now_ms: int,
) -> TopicRemappingDetailWrapper:
    """Make a static topic of ``queues`` logic queues, or give one so many: the new ones go to those of ``targets``,
    and of the brokers that have the topic, that lead fewest (createTopicConfigMapping). Raises StaticTopicProblem."""
    check(topic, configs)
    mine = {name: copied(config) for name, config in configs.items()}
    found = leaders(mine)
    _check_targets(targets)
    if queues < len(found):
        raise StaticTopicProblem(f"Cannot decrease the queue num for static topic {queues} < {len(found)}")
    if queues == len(found):
        raise StaticTopicProblem("The topic queue num is equal the existed queue num, do nothing")
    led = Counter(found.values())
    brokers = sorted({*targets, *mine})
    for number in range(len(found), queues):
        name = min(brokers, key=lambda each: (led[each], each))
        led[name] += 1
        if name not in mine:
            mine[name] = _empty(topic, name)
        config = mine[name]
        item = LogicQueueMappingItem(queue_id=config.write_queue_nums, bname=name)
        _add_physical(config)
        detail_of(name, config).hosted_queues[number] = [item]
    return _plan(topic, CREATE_OR_UPDATE, mine, queues, now_ms, (), ())


def plan_move(
    topic: str, targets: Collection[str], configs: Mapping[str, TopicConfigAndQueueMapping], now_ms: int
) -> TopicRemappingDetailWrapper:
    """Share all logic queues evenly among ``targets``, and move as few as possible (remappingStaticTopic). Raises
    StaticTopicProblem."""
    if not configs:
        raise StaticTopicProblem("No topic route to do the remapping")
    _check_targets(targets)
    check(topic, configs)
    mine = {name: copied(config) for name, config in configs.items()}
    found = leaders(mine)
    led = Counter(found.values())
    ranked = sorted(set(targets), key=lambda name: (-led[name], name))
    each, more = divmod(len(found), len(ranked))
    room = {name: each + (1 if place < more else 0) for place, name in enumerate(ranked)}
    moving = []
    for number, name in found.items():
        if room.get(name, 0) > 0:
            room[name] -= 1
        else:
            moving.append(number)
    to = [name for name in ranked for _ in range(room[name])]
    for number, name in zip(moving, to, strict=True):
        if name not in mine:
            mine[name] = _empty(topic, name)
        old, config = found[number], mine[name]
        items = detail_of(old, mine[old]).hosted_queues[number]
        moved = LogicQueueMappingItem(
            gen=items[-1].gen + 1, queue_id=config.write_queue_nums, bname=name, logic_offset=-1
        )
        _add_physical(config)
        for part in (name, old):
            detail_of(part, mine[part]).hosted_queues[number] = [*items, moved]
    return _plan(topic, REMAPPING, mine, len(found), now_ms, to, (found[number] for number in moving))


def _check_targets(targets: Collection[str]) -> None:
    if not targets:
        raise StaticTopicProblem("Find none brokers, do nothing")


def plan_rest(
    topic: str, configs: Mapping[str, TopicConfigAndQueueMapping], now_ms: int
) -> TopicRemappingDetailWrapper | None:
    """The rest of a move that stopped before the new parts had an offset, without which sends to them fail; None if
    nothing is left. Raises StaticTopicProblem."""
    check(topic, configs)
    mine = {name: copied(config) for name, config in configs.items()}
    new, old = [], []
    for number, name in leaders(mine).items():
        items = detail_of(name, mine[name]).hosted_queues[number]
        if len(items) > 1 and items[-1].logic_offset < 0:
            new.append(name)
            old.append(items[-2].bname or "")
    return _plan(topic, REMAPPING, mine, len(leaders(mine)), now_ms, new, old) if new else None


def _plan(
    topic: str,
    kind: str,
    configs: Configs,
    queues: int,
    now_ms: int,
    to: Iterable[str],
    old: Iterable[str],
) -> TopicRemappingDetailWrapper:
    last = max(detail_of(name, config).epoch for name, config in configs.items())
    epoch = max(last + EPOCH_STEP, now_ms)
    for name, config in configs.items():
        detail = detail_of(name, config)
        detail.epoch, detail.total_queues = epoch, queues
    check(topic, configs)
    return TopicRemappingDetailWrapper(
        topic=topic,
        type=kind,
        epoch=epoch,
        broker_config_map=configs,
        broker_to_map_in=sorted(set(to)),
        broker_to_map_out=sorted(set(old)),
    )


def complete(plan: TopicRemappingDetailWrapper, brokers: Iterable[str]) -> None:
    """The other brokers of the clusters learn of the topic, too (completeNoTargetBrokers)."""
    first = next(iter(plan.broker_config_map.values()))
    total = detail_of(plan.topic, first).total_queues
    for name in brokers:
        if name not in plan.broker_config_map:
            config = plan.broker_config_map[name] = _empty(plan.topic, name)
            detail = detail_of(name, config)
            detail.epoch, detail.total_queues = plan.epoch, total


def decide_offset(plan: TopicRemappingDetailWrapper, number: int, end_offset: int) -> None:
    """Where the new part of a moved queue begins: the old one ends at ``end_offset`` of its physical queue, and no
    longer takes messages."""
    items = next(
        items
        for name in plan.broker_to_map_in
        if (items := detail_of(name, plan.broker_config_map[name]).hosted_queues.get(number)) is not None
        and items[-1].bname == name
    )
    old = items[-2]
    if end_offset < old.start_offset:
        raise StaticTopicProblem(f"The max offset is smaller then the start offset {old} {end_offset}")
    decided = replace(
        items[-1], logic_offset=block_after(max(0, old.logic_offset) + end_offset - old.start_offset)
    )
    for name in (decided.bname or "", old.bname or ""):
        detail_of(name, plan.broker_config_map[name]).hosted_queues[number] = [*items[:-1], decided]


def undecided(plan: TopicRemappingDetailWrapper) -> dict[int, LogicQueueMappingItem]:
    """The moved queues whose new part has no offset yet, and their part before."""
    found = {}
    for name in plan.broker_to_map_in:
        for number, items in detail_of(name, plan.broker_config_map[name]).hosted_queues.items():
            if len(items) > 1 and items[-1].bname == name and items[-1].logic_offset < 0:
                found[number] = items[-2]
    return found


def block_after(offset: int) -> int:
    """The next multiple of BLOCK that leaves at least half a block (TopicQueueMappingUtils.blockSeqRoundUp)."""
    blocks, left = divmod(offset, BLOCK)
    return (blocks + 1 if left < BLOCK // 2 else blocks + 2) * BLOCK


def copied(config: TopicConfigAndQueueMapping) -> TopicConfigAndQueueMapping:
    detail = config.mapping_detail
    if detail is None:
        return config
    hosted = {number: list(items) for number, items in detail.hosted_queues.items()}
    return replace(config, mapping_detail=replace(detail, hosted_queues=hosted))


def _empty(topic: str, name: str) -> TopicConfigAndQueueMapping:
    detail = TopicQueueMappingDetail(topic=topic, bname=name, hosted_queues={})
    return TopicConfigAndQueueMapping(
        topic_name=topic, read_queue_nums=0, write_queue_nums=0, mapping_detail=detail
    )


def _add_physical(config: TopicConfigAndQueueMapping) -> None:
    config.write_queue_nums += 1
    config.read_queue_nums += 1
