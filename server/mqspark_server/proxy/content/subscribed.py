"""What a consumer subscribes to, as brokers call it."""

from __future__ import annotations

from mqspark.protocol.bodies.client_bodies import ConsumeType, SubscriptionData, build_subscription
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcstatus import GrpcRefusal

MAX_FILTER_LENGTH = 16 * 1024
"""Letters of a filter. Each receive has one, whose tags are looked at one by one."""


def filter_of(expression: pb.FilterExpression) -> tuple[str, str]:
    """The type of the filter, and its text. Raises GrpcRefusal."""
    if len(expression.expression) > MAX_FILTER_LENGTH:
        text = f"a filter of {len(expression.expression)} letters, at most {MAX_FILTER_LENGTH} are read"
        raise GrpcRefusal(pb.ILLEGAL_FILTER_EXPRESSION, text)
    if expression.type == pb.SQL:
        return "SQL92", expression.expression
    return "TAG", expression.expression or "*"


def subscription_of(entry: pb.SubscriptionEntry) -> SubscriptionData:
    """Raises GrpcRefusal, InvalidMessage."""
    kind, expression = filter_of(entry.expression)
    return build_subscription(entry.topic.name, expression, kind)


def consume_type_of(settings: pb.Settings) -> ConsumeType:
    if settings.client_type in (pb.PUSH_CONSUMER, pb.LITE_PUSH_CONSUMER):
        return ConsumeType.CONSUME_PASSIVELY
    return ConsumeType.CONSUME_ACTIVELY
