"""Names of topics and groups as clients give them, checked as RocketMQ's proxy checks them (GrpcValidator)."""

from __future__ import annotations

import re

from mqspark.base.bounded import Memo
from mqspark.errors import InvalidMessage
from mqspark.message import check_group, check_topic, is_system_group, is_system_topic
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcstatus import GrpcRefusal

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Java's Character.isISOControl."""


MAX_NAMESPACE_LENGTH = 255
"""It is ignored, but answers repeat it with each queue of a topic."""


def _check_namespace(resource: pb.Resource) -> None:
    if len(resource.resource_namespace) > MAX_NAMESPACE_LENGTH:
        raise GrpcRefusal(pb.BAD_REQUEST, f"the namespace has more than {MAX_NAMESPACE_LENGTH} characters")


def topic_of(resource: pb.Resource) -> str:
    """Raises GrpcRefusal for a name that is illegal or the system's. The namespace is ignored, as the proxy does."""
    _check_namespace(resource)
    return _topics[resource.name]


def _checked_topic(topic: str) -> str:
    try:
        check_topic(topic)
    except InvalidMessage as error:
        raise GrpcRefusal(pb.ILLEGAL_TOPIC, str(error)) from None
    if is_system_topic(topic):
        raise GrpcRefusal(pb.ILLEGAL_TOPIC, "cannot access system topic")
    return topic


def group_of(resource: pb.Resource) -> str:
    """Raises GrpcRefusal for a name that is illegal or the system's."""
    _check_namespace(resource)
    return _groups[resource.name]


def _checked_group(group: str) -> str:
    try:
        check_group(group)
    except InvalidMessage as error:
        raise GrpcRefusal(pb.ILLEGAL_CONSUMER_GROUP, str(error)) from None
    if is_system_group(group):
        raise GrpcRefusal(pb.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return group


_topics: Memo[str, str] = Memo("grpc.topics", _checked_topic)
_groups: Memo[str, str] = Memo("grpc.groups", _checked_group)
"""Names that may be used: calls repeat them."""


def has_control(text: str) -> bool:
    """Whether a control character is in the text."""
    return not text.isprintable() and _CONTROL.search(text) is not None
