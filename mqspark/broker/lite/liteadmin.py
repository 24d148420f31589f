"""What tools ask about lite topics: requests 200074 to 200079 (LiteManagerProcessor, LiteConsumerLagCalculator)."""

from __future__ import annotations

import heapq

from mqspark.auth.policies import Action, Kind
from mqspark.broker.lite.liteclients import CLIENTS_AT_ONCE, QUEUES_AT_ONCE, LiteClients
from mqspark.broker.lite.litelife import LiteLife
from mqspark.broker.pop.poporder import PopOrder
from mqspark.broker.state.litenames import (
    bound_topic,
    expiry_minutes,
    is_lite_type,
    lite_queue,
    parent_and_lite,
)
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.bodies.admin_bodies import OffsetWrapper, TopicOffset
from mqspark.protocol.bodies.lite_bodies import (
    ClientGroup,
    GetBrokerLiteInfoResponseBody,
    GetLiteClientInfoResponseBody,
    GetLiteGroupInfoResponseBody,
    GetLiteTopicInfoResponseBody,
    GetParentTopicInfoResponseBody,
    LiteLagInfo,
)
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig, TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok, ok_in_slices
from mqspark.protocol.headers.admin_headers import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetParentTopicInfoRequestHeader,
    TriggerLiteDispatchRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices, Work
from mqspark.store.queue.multidispatch import LMQ_QUEUE_ID

MAX_LISTED = 10_000
MAX_TOP = 1_000
"""Lite topics with the largest lag that are listed at most."""
NOTHING_READ_MS = -1


class LiteAdminProcessor:
    def __init__(self, state: BrokerState, clients: LiteClients, life: LiteLife, order: PopOrder) -> None:
        self._state = state
        self._clients = clients
        self._life = life
        self._order = order
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_BROKER_LITE_INFO: self.broker_info,
            RequestCode.GET_PARENT_TOPIC_INFO: self.parent_info,
            RequestCode.GET_LITE_TOPIC_INFO: self.topic_info,
            RequestCode.GET_LITE_CLIENT_INFO: self.client_info,
            RequestCode.GET_LITE_GROUP_INFO: self.group_info,
            RequestCode.TRIGGER_LITE_DISPATCH: self.trigger,
        }

    def broker_info(self, session: Session, command: Command) -> Slices:
        state = self._state
        body = GetBrokerLiteInfoResponseBody(
            store_type="default",
            max_lmq_num=state.store_config.max_lmq_consume_queue_num,
            current_lmq_num=len(state.store.table.light),
            lite_subscription_count=self._clients.active,
            order_info_count=len(self._order),
            cq_table_size=len(state.store.table.queues),
            offset_table_size=len(state.offsets.pairs()),
            event_map_size=len(self._clients),
            topic_meta=(yield from self._life.minutes()),
            group_meta=(yield from self._life.groups()),
        )
        return (yield from ok_in_slices(command, body))

    def parent_info(self, session: Session, command: Command) -> Slices:
        topic = command.header(GetParentTopicInfoRequestHeader).topic
        config = self._parent(topic)
        count = 0
        for number, queue in enumerate(self._state.store.table.light_names(lite_queue(topic, "")), 1):
            count += parent_and_lite(queue) is not None
            if number % QUEUES_AT_ONCE == 0:
                yield
        body = GetParentTopicInfoResponseBody(
            topic=topic,
            ttl=expiry_minutes(config),
            groups=(yield from self._life.groups()).get(topic),
            lmq_num=len(self._state.store.table.light),
            lite_topic_count=count,
        )
        return (yield from ok_in_slices(command, body))

    def topic_info(self, session: Session, command: Command) -> Slices:
        header = command.header(GetLiteTopicInfoRequestHeader)
        self._parent(header.parent_topic)
        store, queue = self._state.store, lite_queue(header.parent_topic, header.lite_topic)
        end = max(0, store.offsets.max_offset(queue, LMQ_QUEUE_ID))
        offset = TopicOffset(
            min_offset=max(0, store.offsets.min_offset(queue, LMQ_QUEUE_ID)) if end else 0,
            max_offset=end,
            last_update_timestamp=max(0, store.offsets.store_timestamp_at(queue, LMQ_QUEUE_ID, end - 1))
            if end
            else 0,
        )
        pairs = self._clients.subscribers(queue)
        body = GetLiteTopicInfoResponseBody(
            parent_topic=header.parent_topic,
            lite_topic=header.lite_topic,
            subscriber=[ClientGroup(client_id=client_id, group=group) for client_id, group in pairs],
            topic_offset=offset,
        )
        return (yield from ok_in_slices(command, body))

    def client_info(self, session: Session, command: Command) -> Slices:
        header = command.header(GetLiteClientInfoRequestHeader)
        self._parent(header.parent_topic)
        group = self._group(header.group)
        if bound_topic(group) != header.parent_topic:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"Subscription [{header.group}]-[{header.parent_topic}] not match.",
            )
        client = self._clients.find_of(header.client_id, header.group)
        body = GetLiteClientInfoResponseBody(
            parent_topic=header.parent_topic, group=header.group, client_id=header.client_id
        )
        if client is not None:
            most = max(0, min(header.max_count, MAX_LISTED))
            body.lite_topic_count = len(client.queues)
            body.lite_topic_set = [queue for queue, _ in zip(client.queues, range(most), strict=False)]
            clock = self._state.clock
            body.last_access_time = clock.now_ms() - (clock.monotonic_ms() - client.accessed_ms)
        return (yield from ok_in_slices(command, body))

    def group_info(self, session: Session, command: Command) -> Slices:
        header = command.header(GetLiteGroupInfoRequestHeader)
        parent = self._lite_group(header.group)
        # Whoever made the group may have bound it to any topic.
        if not self._state.permits(session, Kind.TOPIC, parent, Action.GET, Action.SUB):
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"no permission to access the topic of group {header.group}"
            )
        body = GetLiteGroupInfoResponseBody(
            group=header.group, parent_topic=parent, lite_topic=header.lite_topic
        )
        if header.lite_topic:
            self._one_lag(body, header.group, lite_queue(parent, header.lite_topic))
        else:
            yield from self._lags(body, header.group, parent, max(0, min(header.top_k, MAX_TOP)))
        return (yield from ok_in_slices(command, body))

    def _one_lag(self, body: GetLiteGroupInfoResponseBody, group: str, queue: str) -> None:
        store = self._state.store
        end = store.offsets.max_offset(queue, LMQ_QUEUE_ID)
        if end <= 0:
            body.total_lag_count = -1
            return
        committed = self._state.offsets.query(group, queue, LMQ_QUEUE_ID)
        if committed < 0:
            return
        body.total_lag_count = end - committed
        body.earliest_unconsumed_timestamp = store.offsets.store_timestamp_at(queue, LMQ_QUEUE_ID, committed)
        last_ms = store.offsets.store_timestamp_at(queue, LMQ_QUEUE_ID, committed - 1) if committed > 0 else 0
        body.lite_topic_offset_wrapper = OffsetWrapper(
            broker_offset=end, consumer_offset=committed, last_timestamp=last_ms
        )

    def _lags(self, body: GetLiteGroupInfoResponseBody, group: str, parent: str, top: int) -> Work[None]:
        """The lite topics with most messages, and with the oldest message, that the group has not consumed."""
        state, store = self._state, self._state.store
        found: list[LiteLagInfo] = []
        for number, (topic, of) in enumerate(state.offsets.pairs(), 1):
            if number % QUEUES_AT_ONCE == 0:
                yield
            parts = parent_and_lite(topic) if of == group else None
            if parts is None or parts[0] != parent:
                continue
            committed = state.offsets.query(group, topic, LMQ_QUEUE_ID)
            lag = store.offsets.max_offset(topic, LMQ_QUEUE_ID) - committed
            if committed >= 0 and lag > 0:
                oldest_ms = store.offsets.store_timestamp_at(topic, LMQ_QUEUE_ID, committed)
                found.append(
                    LiteLagInfo(lite_topic=parts[1], lag_count=lag, earliest_unconsumed_timestamp=oldest_ms)
                )
        body.total_lag_count = sum(info.lag_count for info in found)
        body.lag_count_top_k = heapq.nlargest(top, found, key=lambda info: info.lag_count)
        body.lag_timestamp_top_k = heapq.nsmallest(
            top, found, key=lambda info: info.earliest_unconsumed_timestamp
        )
        oldest = min((info.earliest_unconsumed_timestamp for info in found), default=NOTHING_READ_MS)
        body.earliest_unconsumed_timestamp = oldest

    def trigger(self, session: Session, command: Command) -> Slices:
        """A full dispatch for one client of a group, or for all."""
        header = command.header(TriggerLiteDispatchRequestHeader)
        self._lite_group(header.group)
        if header.client_id:
            client = self._clients.find_of(header.client_id, header.group)
            chosen = [] if client is None else [client]
        else:
            chosen = self._clients.clients_of(header.group)
        for number, client in enumerate(chosen, 1):
            yield from self._clients.dispatch_all_of(client)
            if number % CLIENTS_AT_ONCE == 0:
                yield
        return ok(command)

    def _parent(self, name: str) -> TopicConfig:
        """Raises Refusal."""
        topic = self._state.topics.get(name)
        if topic is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{name}] not exist.")
        if not is_lite_type(topic.config):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"Topic [{name}] type not match.")
        return topic.config

    def _group(self, name: str) -> SubscriptionGroupConfig:
        """Raises Refusal."""
        config = self._state.subscriptions.configured(name)
        if config is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{name}] not exist.")
        return config

    def _lite_group(self, name: str) -> str:
        """The group's parent topic. Raises Refusal."""
        topic = bound_topic(self._group(name))
        if not topic:
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"Group [{name}] is not a LITE group.")
        return topic
