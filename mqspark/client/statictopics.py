"""Makes static topics and moves their queues between brokers (MQAdminUtils, UpdateStaticTopicSubCommand,
RemappingStaticTopicSubCommand).

A topic's mapping is sent to several brokers, one after the other. When one of them fails, the others have a newer
mapping: ``carry_out`` with the same plan finishes the work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

from mqspark.base.clock import wall_ms
from mqspark.client.admin import AdminClient
from mqspark.client.staticplan import (
    Configs,
    StaticTopicProblem,
    check_plan,
    complete,
    decide_offset,
    detail_of,
    plan_growth,
    plan_move,
    plan_rest,
    undecided,
)
from mqspark.client.staticrepair import plan_repair
from mqspark.errors import BrokerError
from mqspark.message import MASTER_ID, MessageQueue, check_topic
from mqspark.protocol.bodies.admin_bodies import TopicStatsTable
from mqspark.protocol.bodies.body import decode_body, encode_body, queue_key
from mqspark.protocol.bodies.topic_bodies import TopicConfigAndQueueMapping, TopicRemappingDetailWrapper
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.admin_headers import (
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)

MAX_STEPS = 100_000
"""The most steps of a repair: some for each logic queue."""

Plan = TopicRemappingDetailWrapper


class StaticTopics:
    """Static topics of the cluster of an AdminClient."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def plan_growth(self, topic: str, queues: int, brokers: Collection[str]) -> Plan:
        """How to make a static topic of so many logic queues on these brokers, or to give it so many. Raises
        StaticTopicProblem, InvalidMessage for a name that no topic can have, and BrokerError."""
        check_topic(topic)
        configs = await self._configs(topic)
        return await self._completed(plan_growth(topic, queues, brokers, configs, wall_ms()))

    async def plan_move(self, topic: str, brokers: Collection[str]) -> Plan:
        """How to have all logic queues on these brokers, evenly. Raises StaticTopicProblem and BrokerError."""
        configs = await self._configs(topic)
        return await self._completed(plan_move(topic, brokers, configs, wall_ms()))

    async def plan_rest(self, topic: str) -> Plan | None:
        """The rest of a move that failed half-way; None if there is none. Raises StaticTopicProblem and BrokerError."""
        rest = plan_rest(topic, await self._configs(topic), wall_ms())
        return None if rest is None else await self._completed(rest)

    async def carry_out(self, plan: Plan, decided: Callable[[], None] = lambda: None) -> None:
        """Tell the brokers, in the order in which no message is lost: the new leaders, which do not know yet where
        their part begins; the old ones, which take no more messages; the new ones, with that offset; all others.
        ``decided`` is called once the offsets are in the plan, before anybody is told. A plan may be carried out
        again. Raises StaticTopicProblem and ClientError."""
        check_plan(plan)
        await self._tell(plan, decided, force=False)

    async def repair(self, topic: str) -> tuple[Configs, int]:
        """Mend what two commands have left that moved the same queues at the same moment (``staticrepair``). Returns
        what the brokers have then, and how many steps it took. May be called again when it has failed. Raises
        StaticTopicProblem and ClientError."""
        for steps in itertools.count():
            configs = await self._configs(topic)
            plan = plan_repair(topic, configs, wall_ms())
            if plan is None:
                return configs, steps
            if steps == MAX_STEPS:
                break
            await self._tell(plan, lambda: None, force=True)
        raise StaticTopicProblem(f"The brokers still disagree about {topic} after {MAX_STEPS} steps")

    async def _tell(self, plan: Plan, decided: Callable[[], None], *, force: bool) -> None:
        masters = await self._masters()
        for name in plan.broker_config_map:
            _master(masters, name)
        new, old = plan.broker_to_map_in, plan.broker_to_map_out
        for name in (*new, *old):
            await self._put(_master(masters, name), plan.broker_config_map[name], force=force)
        open_parts = undecided(plan)
        for name in old:
            ends = await self._ends(plan.topic, _master(masters, name))
            for number, part in open_parts.items():
                if part.bname == name:
                    key = queue_key(MessageQueue(plan.topic, name, part.queue_id))
                    if key not in ends:
                        raise StaticTopicProblem(f"Cannot get the max offset for old leader {part}")
                    decide_offset(plan, number, ends[key])
        if open_parts:
            decided()
        for name in (*new, *sorted(plan.broker_config_map.keys() - {*new, *old})):
            await self._put(_master(masters, name), plan.broker_config_map[name], force=force)

    async def _masters(self) -> dict[str, str]:
        info = await self._admin.cluster_info()
        return {
            name: address
            for name, data in info.broker_addr_table.items()
            if (address := data.broker_addrs.get(MASTER_ID)) is not None
        }

    async def _completed(self, plan: Plan) -> Plan:
        info = await self._admin.cluster_info()
        for brokers in info.cluster_addr_table.values():
            if not plan.broker_config_map.keys().isdisjoint(brokers):
                complete(plan, sorted(brokers))
        return plan

    async def _configs(self, topic: str) -> Configs:
        """The parts of all brokers that have the topic."""
        found: Configs = {}
        header = GetTopicConfigRequestHeader(topic=topic, lo=True)
        for name, address in sorted((await self._masters()).items()):
            try:
                answer = await self._admin.ask(address, RequestCode.GET_TOPIC_CONFIG, header)
            except BrokerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
            else:
                found[name] = decode_body(TopicConfigAndQueueMapping, answer.body)
        return found

    async def _put(self, address: str, config: TopicConfigAndQueueMapping, *, force: bool) -> None:
        header = config.creation(force=force)
        body = encode_body(detail_of(address, config))
        await self._admin.ask(address, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, header, body)

    async def _ends(self, topic: str, address: str) -> dict[str, int]:
        """The ends of a broker's physical queues."""
        header = GetTopicStatsInfoRequestHeader(topic=topic)
        answer = await self._admin.ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        table = decode_body(TopicStatsTable, answer.body).offset_table
        return {key: each.max_offset for key, each in table.items()}


def _master(masters: dict[str, str], name: str) -> str:
    address = masters.get(name)
    if address is None:
        raise StaticTopicProblem(f"Can't find addr for broker {name}")
    return address
