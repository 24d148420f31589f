"""Where rows go, and how their brokers are reached. Must not know rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqspark.arrow.signing import ENVIRONMENT, SigningOptions

if TYPE_CHECKING:
    from mqspark.arrow.records.encode import Compression

BATCH_BYTES = 1 << 20
LEAST_BATCH_BYTES = 1024
THRESHOLD_BYTES = 4096
"""compressMsgBodyOverHowmuch of RocketMQ's producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendChoice:
    nameserver: str
    topic: str | None
    """Where all rows go; None: each to the topic that its column ``topic`` names."""
    group: str
    batch_bytes: int
    compression: Compression | None
    send_timeout_ms: int
    retry_timeout_ms: int
    """How long brokers and name servers may be away, or too busy, before the write fails."""
    keep_broker_properties: bool
    """Rows may have properties that brokers set (``mqspark.message.SET_BY_BROKERS``); else these are left out."""
    as_dead_letters: bool
    """Brokers make dead letters of rows for a group's retry topic: they have had all their attempts."""
    exactly_once: bool
    """deliveryGuarantee=exactly-once: rows are transactions."""
    signing: SigningOptions = ENVIRONMENT
