"""Settings of a member of a consumer group."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from mqspark.client.consumer.allocate import Allocation, Averagely
from mqspark.errors import ConfigError
from mqspark.protocol.bodies import ConsumeFromWhere, ConsumeType, MessageModel

__all__ = ["GroupSettings", "check_positive", "named"]

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    group: str
    consume_type: ConsumeType
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp_ms: int | None = None
    """For CONSUME_FROM_TIMESTAMP; None: half an hour before the start."""
    allocation: Allocation = field(default_factory=Averagely)
    rebalance_interval_ms: int = 20_000
    pull_batch_size: int = 32
    suspend_ms: int = 15_000
    """How long the broker may hold a pull while there are no messages."""
    local_offsets_directory: Path | None = None
    takeover_delay_ms: int = 200
    """Delay before reading a queue of another member, whose last offset may still be on its way to the broker."""

    def __post_init__(self) -> None:
        """Raises ConfigError. Enumerated settings may be given by name."""
        for key, kind in (("message_model", MessageModel), ("consume_from", ConsumeFromWhere)):
            object.__setattr__(self, key, named(kind, getattr(self, key), key))

    @property
    def broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING


def named(kind: type[E], value: str, key: str) -> E:
    """``value`` as a member of ``kind``, given as the member or its name. Raises ConfigError."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{key}={value!r} is none of {', '.join(kind)}", key=key) from None


def check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be positive", key=name)
