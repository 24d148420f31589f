"""Namespaces: several applications on one cluster, each with its own topics and groups under plain names.

Within a namespace ``N`` the topic ``T`` is ``N%T`` for the cluster, the group ``G`` is ``N%G`` and its retry
topic ``%RETRY%N%G``. System topics and groups belong to everybody. Facts: RocketMQ's NamespaceUtil.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqspark.base.config import told_of
from mqspark.errors import ConfigError
from mqspark.message import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    MessageQueue,
    check_text,
    check_topic,
    is_system_topic,
)

SEPARATOR = "%"


class Namespace:
    """Converts names between the program's form and the cluster's. The empty namespace changes nothing."""

    __slots__ = ("_prefix", "name")

    def __init__(self, name: str = "") -> None:
        """Raises ConfigError for a name that no topic could begin with."""
        if name:
            with told_of("namespace", f"namespace {name!r}"):
                check_topic(name)
            if SEPARATOR in name:
                raise ConfigError(f"namespace {name!r} must not contain {SEPARATOR}", key="namespace")
        self.name = name
        self._prefix = name + SEPARATOR

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrap(self, resource: str) -> str:
        """The cluster's name of a topic or group; a name that already has the namespace is unchanged."""
        kind, plain = _split(resource)
        if not self.name or not plain or _is_system(resource) or plain.startswith(self._prefix):
            return resource
        return kind + self._prefix + plain

    def unwrap(self, resource: str) -> str:
        """The program's name of a topic or group; a name in another namespace is unchanged."""
        kind, plain = _split(resource)
        if not self.name or not plain.startswith(self._prefix):
            return resource
        return kind + plain.removeprefix(self._prefix)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.wrap(queue.topic)) if self.name else queue

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.unwrap(queue.topic)) if self.name else queue

    def wrap_queues(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return [self.wrap_queue(queue) for queue in queues]

    def unwrap_queues(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return [self.unwrap_queue(queue) for queue in queues]


def _split(resource: str) -> tuple[str, str]:
    check_text("topic or group", resource)
    for kind in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(kind):
            return kind, resource.removeprefix(kind)
    return "", resource


def _is_system(resource: str) -> bool:
    return is_system_topic(resource) or resource.startswith(SYSTEM_GROUP_PREFIX)
