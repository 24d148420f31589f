"""Repairs a static topic whose brokers disagree, because two commands moved the same queue to different brokers at the
same moment, and each of these has begun a part of it.

Both parts may have acknowledged messages. Only one of them has its place in the queue. The other one has no logic
offset yet, so nobody can have read it, and it gets its place after the first. The brokers get the same mappings as in a
move of the queue from one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from mqspark.client.staticplan import (
    EPOCH_STEP,
    REMAPPING,
    Configs,
    StaticTopicProblem,
    check,
    copied,
    detail_of,
    leaders,
)
from mqspark.protocol.bodies.topic_bodies import (
    LogicQueueMappingItem,
    TopicConfigAndQueueMapping,
    TopicRemappingDetailWrapper,
)

Items = list[LogicQueueMappingItem]


class _Mended(NamedTuple):
    """One logic queue as it will be, and the parts that do not belong to it yet."""

    items: Items
    strays: list[tuple[int, LogicQueueMappingItem]]
    """Parts that have begun elsewhere, with the epoch of their mapping, oldest first."""


def plan_repair(
    topic: str, configs: Mapping[str, TopicConfigAndQueueMapping], now_ms: int
) -> TopicRemappingDetailWrapper | None:
    """The next step, to be sent to the brokers with force; None: they agree. A step may be repeated. Raises
    StaticTopicProblem for a disagreement that cannot be repaired without a loss."""
    if _agree(topic, configs):
        return None
    mine = {name: copied(config) for name, config in configs.items()}
    details = {name: detail_of(name, config) for name, config in mine.items()}
    for name, detail in details.items():
        if detail.bname != name or detail.scope != next(iter(details.values())).scope:
            raise StaticTopicProblem(f"The mapping of broker {name} is not one of this broker and topic")
    epoch = max(max(detail.epoch for detail in details.values()) + EPOCH_STEP, now_ms)
    total = max(detail.total_queues for detail in details.values())
    for detail in details.values():
        detail.epoch, detail.total_queues = epoch, total
    before = {name: detail_of(name, config).epoch for name, config in configs.items()}
    queues = [_mended(number, mine, before) for number in range(total)]
    for number, queue in enumerate(queues):
        items = queue.items
        if queue.strays and items[-1].logic_offset >= 0:
            items = [*items, replace(queue.strays[0][1], gen=items[-1].gen + 1)]
        if len(items) > 1 and items[-1].logic_offset < 0:
            return _step(topic, epoch, mine, number, items)
    for number, queue in enumerate(queues):
        for name, detail in details.items():
            if number in detail.hosted_queues or queue.items[-1].bname == name:
                detail.hosted_queues[number] = list(queue.items)
    check(topic, mine)
    return TopicRemappingDetailWrapper(
        topic=topic,
        type=REMAPPING,
        epoch=epoch,
        broker_config_map=mine,
        broker_to_map_in=[],
        broker_to_map_out=[],
    )


def _agree(topic: str, configs: Mapping[str, TopicConfigAndQueueMapping]) -> bool:
    if not configs:
        raise StaticTopicProblem("No topic route to do the repair")
    try:
        check(topic, configs)
        found = leaders(configs)
    except StaticTopicProblem:
        return False
    ends = (detail_of(name, configs[name]).hosted_queues[number][-1] for number, name in found.items())
    return all(end.logic_offset >= 0 for end in ends)


def _step(topic: str, epoch: int, mine: Configs, number: int, items: Items) -> TopicRemappingDetailWrapper:
    """A move of one queue to the broker of its last part."""
    new, old = items[-1].bname or "", items[-2].bname or ""
    for name in (new, old):
        if name not in mine:
            raise StaticTopicProblem(
                f"Broker {name} has a part of queue {number}, and does not know the topic"
            )
        detail_of(name, mine[name]).hosted_queues[number] = list(items)
    return TopicRemappingDetailWrapper(
        topic=topic,
        type=REMAPPING,
        epoch=epoch,
        broker_config_map={name: mine[name] for name in (new, old)},
        broker_to_map_in=[new],
        broker_to_map_out=[old],
    )


def _mended(number: int, configs: Configs, epochs: Mapping[str, int]) -> _Mended:
    lists = {
        name: items
        for name, config in configs.items()
        if (items := detail_of(name, config).hosted_queues.get(number))
    }
    if not lists:
        raise StaticTopicProblem(f"No broker has logic queue {number}")

    def rank(name: str) -> tuple[int, int, bool, int, str]:
        """What is decided is kept, then what the broker of the part before knows of, then what began first."""
        items = lists[name]
        decided = sum(item.logic_offset >= 0 for item in items)
        earlier = lists.get(items[-2].bname or "", []) if len(items) > 1 else []
        is_known = any(_is_same(items[-1], item) for item in earlier)
        return decided, len(items), is_known, -epochs[name], name

    chain = lists[max(lists, key=rank)]
    strays: list[tuple[int, LogicQueueMappingItem]] = []
    for name, items in sorted(lists.items()):
        for item in items:
            known = next((each for each in chain if _is_same(item, each)), None)
            if known is None and (item is not items[-1] or item.logic_offset >= 0):
                raise StaticTopicProblem(
                    f"Queue {number} has a part at {item.bname}-{item.queue_id} by broker {name}, which others do not"
                    " know and which may have been read"
                )
            if known is None and not any(_is_same(item, stray) for _, stray in strays):
                strays.append((epochs[name], item))
            elif known is not None and -1 < item.logic_offset != known.logic_offset:
                raise StaticTopicProblem(
                    f"The part of queue {number} at {item.bname}-{item.queue_id} begins at {item.logic_offset} by"
                    f" broker {name}, and at {known.logic_offset} by others"
                )
    return _Mended(list(chain), sorted(strays, key=lambda stray: (stray[0], stray[1].bname or "")))


def _is_same(one: LogicQueueMappingItem, other: LogicQueueMappingItem) -> bool:
    return (one.bname, one.queue_id) == (other.bname, other.queue_id)
