"""Who is connected, as tools ask it (AdminBrokerProcessor; reference remoting-protocol §5.9)."""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.broker.groups import ConsumerGroup, Member
from mqspark.broker.state import BrokerState
from mqspark.broker.views import language_name
from mqspark.protocol.bodies import (
    ConnectionInfo,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
    encode_body,
)
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
)
from mqspark.protocol.session import Session

__all__ = ["Connections"]


class Connections:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of_consumer,
        }

    def consumer_connections(self, session: Session, command: Command) -> bytes:
        name = command.header(GetConsumerConnectionListRequestHeader).consumer_group
        group = self._state.clients.consumer(name)
        if group is None:
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connection_set=_connections(group.members.values()),
            subscription_table={topic: item.data for topic, item in group.subscriptions.items()},
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return ok(command, None, encode_body(body))

    def producer_connections(self, session: Session, command: Command) -> bytes:
        name = command.header(GetProducerConnectionListRequestHeader).producer_group
        members = self._state.clients.producer_members(name)
        if not members:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return ok(command, None, encode_body(ProducerConnection(connection_set=_connections(members))))

    def all_producers(self, session: Session, command: Command) -> bytes:
        data = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=f"/{member.session.peer}",
                    language=language_name(member.language),
                    version=member.version,
                    last_update_timestamp=member.seen_wall_ms,
                )
                for member in members
            ]
            for group, members in self._state.clients.producers().items()
        }
        return ok(command, None, encode_body(ProducerTableInfo(data=data)))

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


def _connections(members: Iterable[Member]) -> list[ConnectionInfo]:
    return [
        ConnectionInfo(
            client_id=member.client_id,
            client_addr=member.session.peer,
            language=language_name(member.language),
            version=member.version,
        )
        for member in members
    ]
