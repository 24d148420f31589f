"""The filter of a subscription, by tags or SQL92, and whether the brokers support it. Facts:
RocketMQ's FilterAPI and MQClientInstance.checkClientInBroker."""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.base.logs import escaping
from mqspark.client.remoting.instance import ClientInstance
from mqspark.errors import ClientError, ConfigError, ConnectionLost, RequestTimeout
from mqspark.filter.sql import SQL92
from mqspark.message import check_topic
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.client_bodies import (
    CheckClientRequestBody,
    SubscriptionData,
    build_subscription,
)
from mqspark.protocol.codes import RequestCode

log = escaping(__name__)

_SQL92_VERSION = 232
"""Ordinal of V4_1_0_SNAPSHOT; an older broker reads a SQL92 filter as a tag (MQVersion)."""


def subscription_of(topic: str, tags: str | Iterable[str], sql: str | None, version: int) -> SubscriptionData:
    """``tags``: ``A || B``, or the tags one by one. Raises InvalidMessage, ConfigError."""
    check_topic(topic)
    expression = tags if isinstance(tags, str) else " || ".join(tags)
    if sql is None:
        return build_subscription(topic, expression, "TAG", version)
    if expression != "*":
        raise ConfigError("give either tags or sql; a SQL92 filter can test TAGS = 'A'", key="sql")
    if not sql.strip():
        raise ConfigError("sql must not be empty; leave it out to get everything", key="sql")
    return build_subscription(topic, sql, SQL92, version)


async def check_filters(
    instance: ClientInstance, group: str, subscriptions: Iterable[SubscriptionData]
) -> None:
    """Check that the brokers of each topic with a SQL92 filter support it. Unreachable brokers are skipped. Raises
    ClientError."""
    for subscription in subscriptions:
        route = instance.cached_route(subscription.topic)
        if subscription.expression_type != SQL92 or route is None:
            continue
        for name in route.brokers:
            address = route.address(name)
            if address is None:
                continue
            try:
                await _check_filter(instance, group, address, subscription)
            except (ConnectionLost, RequestTimeout) as error:
                log.warning(
                    "cannot check whether brokers accept the filter of %s: %s", subscription.topic, error
                )


async def _check_filter(
    instance: ClientInstance, group: str, address: str, subscription: SubscriptionData
) -> None:
    await instance.remoting.connect(address)  # the first heartbeat returns the version
    require_sql(instance, address)
    body = CheckClientRequestBody(client_id=instance.client_id, group=group, subscription_data=subscription)
    await instance.remoting.invoke(
        address,
        RequestCode.CHECK_CLIENT_CONFIG,
        body=encode_body(body),
        timeout_ms=instance.options.request_timeout_ms,
    )


def require_sql(instance: ClientInstance, address: str) -> None:
    """Raises ClientError when the broker is known to be too old."""
    version = instance.broker_version(address)
    if version is not None and version < _SQL92_VERSION:
        raise ClientError(
            f"broker {address} does not filter by SQL92: its version is {version}, {_SQL92_VERSION} is needed"
            " (RocketMQ 4.1); subscribe by tags"
        )
