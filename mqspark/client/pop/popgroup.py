"""A member of a group whose queues are assigned by the brokers instead of by the members. Facts: RocketMQ's
RebalanceImpl.getRebalanceResultFromBroker, QueryAssignmentProcessor."""

from __future__ import annotations

import logging
from functools import partial

from mqspark.base.logs import escaping
from mqspark.client.consumer.consumer import GroupConsumer
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import NoRoute, ProtocolError
from mqspark.message import RETRY_PREFIX, MessageQueue
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import QueryAssignmentRequestBody, QueryAssignmentResponseBody
from mqspark.protocol.codes import RequestCode

log = escaping(__name__)

POP, PULL = "POP", "PULL"
ALL_QUEUES = -1
"""The queue id that stands for all queues of a broker."""

_ASSIGNMENT_TIMEOUT_MS = 3_000


class AssignedGroup(GroupConsumer):
    """A member whose queues are assigned by the brokers."""

    async def assigned(self, topic: str) -> dict[MessageQueue, str] | None:
        """Queue → PULL or POP; None if the broker has no answer, and then the previous assignment stays. Raises
        MQError."""
        route = await self.instance.route(topic)
        masters = list(route.masters.values())
        if not masters:
            raise NoRoute(topic, "no master serves it")
        question = QueryAssignmentRequestBody(
            topic=topic,
            consumer_group=self.settings.group,
            client_id=self.instance.client_id,
            strategy_name=self.settings.allocation.name,
            message_model=self.settings.message_model,
        )
        answer = await self._answers.ask(
            masters,
            partial(
                self.instance.remoting.invoke,
                code=RequestCode.QUERY_ASSIGNMENT,
                body=encode_body(question),
                timeout_ms=_ASSIGNMENT_TIMEOUT_MS,
            ),
        )
        assignments = decode_body(QueryAssignmentResponseBody, answer.body).message_queue_assignments
        if assignments is None:
            return None
        modes = {one.message_queue.queue: one.mode for one in assignments if one.message_queue is not None}
        if not all(_is_in(route, queue) for queue in modes):
            # The broker may know more of the topic than this client, or say what is not so.
            route = await self.instance.route(topic, refresh=True)
            for queue in modes:
                if not _is_in(route, queue):
                    raise ProtocolError(f"a broker of {topic} assigns {queue}, which the topic does not have")
        return modes

    async def _rebalance(self, topic: str) -> bool:
        if topic.startswith(RETRY_PREFIX):
            return True  # POP has its own retry topics; brokers read them
        assigned = await self.assigned(topic)
        outages, group = self.instance.outages, self.settings.group
        if assigned is None:
            outages.failed(
                ("assignment", group, topic),
                None,
                "no broker has an assignment of %s for %s yet; if this persists, create the group"
                " (AdminClient.create_group, mqadmin updateSubGroup) or turn on"
                " autoCreateSubscriptionGroup at the brokers",
                topic,
                group,
            )
            return False
        outages.over(("assignment", group, topic), "brokers have an assignment of %s for %s", topic, group)
        if PULL in assigned.values():
            outages.failed(("mode", group, topic), None, "%s", not_popped(topic, group), level=logging.ERROR)
        else:
            outages.over(("mode", group, topic), "group %s consumes %s by pop now", group, topic)
        wanted = {queue for queue, mode in assigned.items() if mode == POP}
        owned = {queue for queue in self._owner.owned() if queue.topic == topic}
        if gone := owned - wanted:
            await self._owner.give_up(sorted(gone))
        for queue in sorted(wanted - owned):
            log.info("%s pops %s", self.settings.group, queue)
            await self._owner.take(queue, 0)
        return True


def _is_in(route: TopicRoute, queue: MessageQueue) -> bool:
    """Whether the topic has that queue, or that broker for all of its queues."""
    if queue.queue_id == ALL_QUEUES:
        return queue.topic == route.topic and queue.broker_name in route.brokers
    return queue in route.subscribe_queues


def not_popped(topic: str, group: str) -> str:
    return (
        f"group {group} consumes {topic} by pull: switch it with AdminClient.set_consume_mode({topic!r}, {group!r},"
        f" 'POP') or mqadmin setConsumeMode -t {topic} -g {group} -m POP, when no other consumer pulls for it"
    )
