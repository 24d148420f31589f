"""Which queues are read, from where to where, and how their brokers are reached; or which part of a store. Must not
know a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from mqspark.arrow.signing import ENVIRONMENT, SigningOptions
from mqspark.record.compression import InflateLimits

RETRY_TIMEOUT_MS = 5 * 60 * 1000
"""A broker that is killed is ready again in a minute or two, a failover takes less."""

QueueTexts = dict[str, dict[str, int]]
"""Topic to queue to number, as users write it: the queue is ``"0"`` or ``"broker-a:0"``."""

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
"""In JSON offsets, as in the Kafka source."""


class Position(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    """The group's committed offset; a queue without one starts at its first message."""


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The selected queues, given in exactly one of three ways."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Topic to queues (``"0"``: on every broker; ``"broker-a:0"``)."""

    def selects(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.names or topic in self.assigned


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """The start or the end of a read: ``offsets``, else ``timestamps_ms``, else ``timestamp_ms``, else
    ``position``."""

    option: str
    position: Position
    offsets: QueueTexts | None = None
    timestamp_ms: int | None = None
    timestamps_ms: QueueTexts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChoice:
    nameserver: str
    topics: TopicSelection
    group: str | None
    starting: OffsetSpec
    ending: OffsetSpec
    unmatched_timestamp_is_latest: bool
    """A queue without a message from the starting time on starts at its end; otherwise that is an error."""
    fail_on_data_loss: bool
    limits: InflateLimits
    """The limits of a decompressed body."""
    tags: tuple[str, ...]
    sql_filter: str | None
    keys: tuple[str, ...]
    """The messages with one of these keys, found with the brokers' index."""
    archive: str | None
    """The archive of history that the brokers no longer have (``mqspark_jobs.archive``)."""
    local_read: bool
    local_directories: tuple[str, ...] | None
    """Directories of stores that may be read locally when the broker is on this host."""
    retry_timeout_ms: int
    """How long brokers and name servers may be away before the read fails."""
    signing: SigningOptions = ENVIRONMENT


@dataclass(frozen=True, slots=True)
class StoreChoice:
    log: str
    """The directory of the segments, path or URL."""
    topics: tuple[str, ...]
    """Empty: all."""
    broker: str
    """The value of the column ``broker``."""
    starting_position: int
    ending_position: int | None
    """Physical offsets; None: as far as there are valid records."""
    fail_on_data_loss: bool
    limits: InflateLimits
    """The limits of a decompressed body."""
