"""The decision about a message that a function could not process: try again, dead letter, or drop.

Plain Python without pyspark and pyarrow: functions raise these exceptions in Spark's workers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mqspark.errors import ConfigError

DONE, RETRY, DEAD, DISCARDED, WAIT = "done", "retry", "dead", "discarded", "wait"
"""The kinds of outcome. ``wait``: not called, because an earlier message of its key waits for its next attempt."""

FAILED_TYPE = "MQSPARK_FAILED_TYPE"
FAILED_TEXT = "MQSPARK_FAILED_TEXT"
FAILED_ATTEMPT = "MQSPARK_FAILED_ATTEMPT"
FAILED_QUERY = "MQSPARK_FAILED_QUERY"
FAILED_BATCH = "MQSPARK_FAILED_BATCH"
FAILED_AT_MS = "MQSPARK_FAILED_AT_MS"
REASONS = (FAILED_TYPE, FAILED_TEXT, FAILED_ATTEMPT, FAILED_QUERY, FAILED_BATCH, FAILED_AT_MS)
"""Properties of a message that failed: why, and where. Each failure replaces those of the one before."""
RETRY_OF = "MQSPARK_RETRY_OF"
"""Property of a retry: the place (broker:topic:queue:offset) from which the failed message was read. A message that is
sent back twice has the same place."""
ORDER_KEY = "MQSPARK_ORDER_KEY"
"""Property of a retry of an ordered queue: what waits behind it."""

_TEXT_CHARACTERS = 1000
_TYPE_CHARACTERS = 200
_SEPARATORS = re.compile("[\x00-\x02\ud800-\udfff]")
MAX_DELAY_MS = 3 * 86_400_000
"""timerMaxDelaySec of a broker, by default. A message for which it is exceeded would be refused."""
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(name: str, value: object) -> int:
    """Milliseconds of seconds as a number, or of a text such as ``500ms``, ``30s``, ``15m``, ``1h``. Raises
    ConfigError."""
    delay_ms = -1
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_DELAY_MS:
        delay_ms = round(value * 1000)
    elif isinstance(value, str):
        found = re.fullmatch(r"(\d{1,12})\s*(ms|s|min|m|h|d)", value.strip().lower())
        if found is not None:
            delay_ms = int(found[1]) * _UNITS_MS[found[2]]
    if not 0 <= delay_ms <= MAX_DELAY_MS:
        raise ConfigError.of(
            name, f"seconds, or a time like 500ms, 30s, 15m or 1h, up to 3 days, not {value!r:.80}"
        )
    return delay_ms


class RetryAfter(Exception):
    """Raised by a function: the message fails, and comes again after ``delay`` (seconds, or a text such as ``5m``).
    Without a delay it waits as after any other exception."""

    def __init__(self, delay: float | str | None = None, reason: str = "") -> None:
        super().__init__(delay, reason)
        self.delay_ms = None if delay is None else duration_ms("delay", delay)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Discard(Exception):
    """Raised by a function: the message is finished without a result; it is neither tried again nor a dead letter."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one message failed."""

    type: str
    text: str
    delay_ms: int | None = None
    """None: according to the policy."""
    is_final: bool = False
    """No further attempt: the message kills the process that handles it."""
    is_discarded: bool = False

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if isinstance(error, Discard):
            return cls("Discard", "", is_discarded=True)
        kind = type(error)
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
        delay_ms = error.delay_ms if isinstance(error, RetryAfter) else None
        try:
            text = str(error)
        except Exception as broken:
            text = f"no text: str() raised {type(broken).__name__}"
        return cls(clean(name, _TYPE_CHARACTERS), clean(text, _TEXT_CHARACTERS), delay_ms)


def clean(text: str, characters: int) -> str:
    """As the value of a property: without separators, bounded."""
    return _SEPARATORS.sub("?", text[:characters])


@dataclass(frozen=True, slots=True)
class Policy:
    """How often a message is tried, and how long it waits in between."""

    max_attempts: int
    delays_ms: tuple[int, ...] | None
    """After the first attempt, the second and so on; the last one repeats. None: RocketMQ's delay levels, 10 s, 30 s,
    1 min and so on up to 2 h."""

    @classmethod
    def parse(cls, max_attempts: int, delays: Sequence[float | str] | str | None) -> Policy:
        """Raises ConfigError."""
        if (
            isinstance(max_attempts, bool)
            or not isinstance(max_attempts, int)
            or not 1 <= max_attempts < 1 << 20
        ):
            raise ConfigError.of("max_attempts", f"a whole number from 1 on, not {max_attempts!r:.80}")
        if delays is None:
            return cls(max_attempts, None)
        parts = delays.split() if isinstance(delays, str) else list(delays)
        if not parts:
            raise ConfigError.of("delays", "name at least one, or leave them out")
        return cls(max_attempts, tuple(duration_ms("delays", part) for part in parts))

    def kind(self, failure: Failure, attempt: int) -> str:
        """The decision about a message that failed in this attempt, counted from 1."""
        if failure.is_discarded:
            return DISCARDED
        return DEAD if failure.is_final or attempt >= self.max_attempts else RETRY

    def delay_ms(self, failure: Failure, attempt: int) -> int | None:
        """None: the broker's delay level of this attempt."""
        if failure.delay_ms is not None or self.delays_ms is None:
            return failure.delay_ms
        return self.delays_ms[min(attempt, len(self.delays_ms)) - 1]
