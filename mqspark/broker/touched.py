"""What requests really touch in a broker: stored messages, groups, its cluster (for ``mqspark.auth.access``)."""

from __future__ import annotations

from mqspark.auth.access import TouchedMessage
from mqspark.broker.state.state import BrokerState
from mqspark.message import PhysicalOffset, decode_properties
from mqspark.record.record import take_apart


class Touched:
    def __init__(self, state: BrokerState) -> None:
        self._state = state

    @property
    def cluster(self) -> str:
        return self._state.config.broker_cluster_name

    @property
    def addresses(self) -> tuple[str, ...]:
        return (self._state.config.address.lower(),)

    @property
    def multi_dispatch(self) -> bool:
        return self._state.store_config.enable_multi_dispatch

    def stored(self, position: int) -> TouchedMessage | None:
        record = self._state.store.reads.record_at(PhysicalOffset(position)) if position >= 0 else None
        if record is None:
            return None
        parts = take_apart(record)
        return TouchedMessage(parts.topic, decode_properties(parts.properties))

    def is_group(self, name: str) -> bool:
        return self._state.subscriptions.configured(name) is not None

    def cluster_of(self, broker_name: str) -> str | None:
        """A broker keeps no routes of others that it believes."""
        return None
