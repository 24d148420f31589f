"""The tags code of a queue entry: one function for dispatch and recovery, so that both write the same entry.

In SCHEDULE_TOPIC_XXXX it is the deliver time, elsewhere the hash of the tags
(CommitLog.checkMessageAndReturnSize).
"""

from __future__ import annotations

from mqspark.base.propertystring import find_marked, mark
from mqspark.errors import ConfigError
from mqspark.message import DELAY, SCHEDULE_TOPIC, parse_number
from mqspark.record.record import CheckedRecord, tags_code

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNKNOWN_LEVEL_MS = 1_000
_DELAY = mark(DELAY).encode()


class DelayLevels:
    """``messageDelayLevel`` parsed; the first level is 1. Raises ConfigError when a level is not a number and
    a unit."""

    def __init__(self, text: str) -> None:
        self.delays_ms: list[int] = []
        for word in text.split():
            unit = _UNIT_MS.get(word[-1])
            if unit is None or not (word[:-1].isascii() and word[:-1].isdigit()):
                raise ConfigError(
                    f"{word!r} in messageDelayLevel is not like 10s, 5m, 2h or 1d", key="messageDelayLevel"
                )
            self.delays_ms.append(int(word[:-1]) * unit)

    def deliver_time_ms(self, level: int, store_timestamp_ms: int) -> int:
        """Deliver time of a level. Levels above the highest count as the highest."""
        level = min(level, len(self.delays_ms))
        return store_timestamp_ms + (self.delays_ms[level - 1] if level > 0 else _UNKNOWN_LEVEL_MS)

    def tags_code_of(self, record: CheckedRecord) -> int:
        """Tags code of a record read from the log."""
        code = tags_code(record.properties)
        if record.topic == SCHEDULE_TOPIC:
            return self.schedule_tags_code(record.properties, code, record.store_timestamp_ms)
        return code

    def schedule_tags_code(self, properties: bytes, tags_code: int, store_timestamp_ms: int) -> int:
        """Tags code of an entry of SCHEDULE_TOPIC_XXXX; ``tags_code`` is that of the tags."""
        level = parse_number(find_marked(properties, _DELAY))
        return self.deliver_time_ms(level, store_timestamp_ms) if level else tags_code
