"""What is configured for each consumer group (SubscriptionGroupManager; reference store-and-broker §13.2) and
its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mqspark.broker.config import BrokerConfig
from mqspark.broker.topics import next_version
from mqspark.clock import Clock
from mqspark.errors import InvalidMessage
from mqspark.message import SYSTEM_GROUP_PREFIX, check_group
from mqspark.names import sound_only
from mqspark.protocol import fastjson
from mqspark.protocol.bodies import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    decode_table,
    to_document,
)
from mqspark.store.dispatch import is_lmq

__all__ = ["SubscriptionGroups"]

_BUILT_IN = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


class SubscriptionGroups:
    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._table = {name: SubscriptionGroupConfig(group_name=name) for name in _BUILT_IN}
        self._forbidden: dict[str, dict[str, int]] = {}
        """group → topic → bits; bit 0 forbids reading (code 353)."""
        self.data_version = DataVersion(state_version=0, timestamp=clock.now_ms(), counter=0)
        self.generation = 0
        self.lmq = False
        """Whether groups that read light message queues are there without being in the table
        (LmqSubscriptionGroupManager)."""

    def __contains__(self, group: str) -> bool:
        return group in self._table or (self.lmq and is_lmq(group))

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(list(self._table.values()))

    def names(self) -> list[str]:
        return list(self._table)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The configuration; made on the spot when auto-creation allows. None for an unknown or illegal
        name. A group of light message queues has the usual one and is not kept, for there may be millions."""
        found = self._table.get(group)
        if found is not None:
            return found
        if self.lmq and is_lmq(group):
            return SubscriptionGroupConfig(group_name=group)
        if not (self._config.auto_create_subscription_group or group.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        try:
            check_group(group)
        except InvalidMessage:
            return None
        created = SubscriptionGroupConfig(group_name=group)
        self.put(created)
        return created

    def configured(self, group: str) -> SubscriptionGroupConfig | None:
        """What is in the table; makes nothing."""
        return self._table.get(group)

    def put(self, config: SubscriptionGroupConfig) -> None:
        if self._table.get(config.group_name) != config:
            self._table[config.group_name] = config
            self._changed()

    def remove(self, group: str) -> None:
        self._forbidden.pop(group, None)
        if self._table.pop(group, None) is not None:
            self._changed()

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        if not self._forbidden:
            return False
        return self._forbidden.get(group, {}).get(topic, 0) & 1 != 0

    def forbid_read(self, group: str, topic: str, forbidden: bool) -> None:
        topics = self._forbidden.setdefault(group, {})
        bits = topics.get(topic, 0)
        bits = bits | 1 if forbidden else bits & ~1
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
        if not topics:
            del self._forbidden[group]
        self._changed()

    def _changed(self) -> None:
        self.data_version = next_version(self.data_version, self._clock.now_ms())
        self.generation += 1

    # --- file ---

    def wrapper(self) -> SubscriptionGroupWrapper:
        return SubscriptionGroupWrapper(
            data_version=self.data_version,
            forbidden_table={group: dict(topics) for group, topics in self._forbidden.items()},
            subscription_group_table=dict(self._table),
        )

    def snapshot(self) -> Callable[[], bytes]:
        """What encodes the file. Configurations are replaced, never changed, so another thread may look at
        them."""
        wrapper = self.wrapper()
        return lambda: fastjson.dumps_pretty(to_document(wrapper)).encode()

    def load(self, data: bytes) -> None:
        """From ``subscriptionGroup.json``. Raises ProtocolError."""
        wrapper = decode_table(SubscriptionGroupWrapper, data)
        for name, config in sound_only("groups", wrapper.subscription_group_table).items():
            config.group_name = name
            self._table[name] = config
        forbidden = sound_only("forbidden groups", wrapper.forbidden_table or {})
        self._forbidden = {
            group: sound_only("topics of a forbidden group", topics) for group, topics in forbidden.items()
        }
        if wrapper.data_version is not None:
            self.data_version = wrapper.data_version
