"""Lists of connected producers and consumers for tools (AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.broker.admin.views import language_name
from mqspark.broker.state.groups import MEMBERS_AT_ONCE, ConsumerGroup, GroupMember
from mqspark.broker.state.state import BrokerState
from mqspark.protocol.bodies.admin_bodies import QuerySubscriptionResponseBody
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import (
    ConnectionInfo,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok, ok_in_slices
from mqspark.protocol.headers.admin_headers import QuerySubscriptionByConsumerRequestHeader
from mqspark.protocol.headers.client_headers import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Slices, Work


class ConnectionsProcessor:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of_consumer,
        }

    def consumer_connections(self, session: Session, command: Command) -> Slices:
        name = command.header(GetConsumerConnectionListRequestHeader).consumer_group
        group = self._state.clients.consumer(name)
        if group is None:
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connection_set=(yield from _connections(group.members.values())),
            subscription_table={topic: item.data for topic, item in group.subscriptions.items()},
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return (yield from ok_in_slices(command, body))

    def producer_connections(self, session: Session, command: Command) -> Slices:
        name = command.header(GetProducerConnectionListRequestHeader).producer_group
        members = self._state.clients.producer_members(name)
        if not members:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = ProducerConnection(connection_set=(yield from _connections(members)))
        return (yield from ok_in_slices(command, body))

    def all_producers(self, session: Session, command: Command) -> Slices:
        data: dict[str, list[ProducerInfo]] = {}
        done = 0
        for group, members in self._state.clients.producers().items():
            shown = data[group] = list[ProducerInfo]()
            for member in members:
                shown.append(
                    ProducerInfo(
                        client_id=member.client_id,
                        remote_ip=f"/{member.session.peer}",
                        language=language_name(member.language),
                        version=member.version,
                        last_update_timestamp=member.seen_wall_ms,
                    )
                )
                done += 1
                if done % MEMBERS_AT_ONCE == 0:
                    yield
            done += 1
            if done % MEMBERS_AT_ONCE == 0:
                yield
        return (yield from ok_in_slices(command, ProducerTableInfo(data=data)))

    def subscription_of_consumer(self, session: Session, command: Command) -> bytes:
        header = command.header(QuerySubscriptionByConsumerRequestHeader)
        group: ConsumerGroup | None = self._state.clients.consumer(header.group)
        subscription = (
            None if group is None or header.topic is None else group.subscriptions.get(header.topic)
        )
        body = QuerySubscriptionResponseBody(
            group=header.group,
            topic=header.topic,
            subscription_data=None if subscription is None else subscription.data,
        )
        return ok(command, None, encode_body(body))


def _connections(members: Iterable[GroupMember]) -> Work[list[ConnectionInfo]]:
    """The connections of those who are members now."""
    shown: list[ConnectionInfo] = []
    for number, member in enumerate(list(members), 1):
        shown.append(
            ConnectionInfo(
                client_id=member.client_id,
                client_addr=member.session.peer,
                language=language_name(member.language),
                version=member.version,
            )
        )
        if number % MEMBERS_AT_ONCE == 0:
            yield
    return shown
