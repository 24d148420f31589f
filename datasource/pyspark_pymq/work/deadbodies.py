"""``mode=DEADLETTER``: bodies that do not fit their schema become dead letters of the group, as those of a work queue.

At least once: a task that Spark runs again sends its dead letters again. They are stored before the batch is finished.
Must not know how bodies are decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from mqspark.arrow.records.encode import Compression
from mqspark.arrow.writing.sendchoice import BATCH_BYTES, SendChoice
from mqspark.base.clock import wall_ms
from mqspark.message import retry_topic
from mqspark.record.compression import ZLIB
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.work.retryqueues import Failed, SendBackTimes, properties_of

NEEDED = ("value", "key", "tags", "topic", "msgId", "properties")
"""The columns of a message that its dead letter is made of."""
_TYPE = "MalformedBody"
_MAX_TEXT = 1_000
_MAX_UNSENT_ROWS = 1_000
_MAX_UNSENT_BYTES = 4 << 20
_COMPRESSED_FROM = 1 << 20
_MAP = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class DeadBodies:
    """Where they go. It is pickled."""

    choice: SendChoice

    needed = NEEDED

    def letters(self) -> DeadLetterRows:
        """Those of a task."""
        return DeadLetterRows(self)

    @classmethod
    def of(cls, options: ReadOptions, group: str) -> DeadBodies:
        choice = SendChoice(
            nameserver=options.nameserver,
            topic=retry_topic(group),
            group=group,
            batch_bytes=BATCH_BYTES,
            compression=Compression(ZLIB, _COMPRESSED_FROM),
            send_timeout_ms=SendBackTimes(options.retry_timeout_ms).send_timeout_ms,
            retry_timeout_ms=options.retry_timeout_ms,
            keep_broker_properties=True,  # a dead letter says where it comes from
            as_dead_letters=True,
            exactly_once=False,
            signing=options.signing,
        )
        return cls(choice)


class _UnfitBody(NamedTuple):
    topic: str
    key: str | None
    tags: str | None
    msgId: str | None
    properties: dict[str, str]
    attempt: int = 1


class DeadLetterRows:
    """Collects the dead letters of a task, and sends them in batches."""

    def __init__(self, dead: DeadBodies) -> None:
        self._choice = dead.choice
        self._rows: list[dict[str, object]] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch, reasons: pa.StringArray) -> None:
        """The messages with a reason, of a batch with ``NEEDED``. Raises what a send raises."""
        is_bad = reasons.is_valid()
        bad = batch.select(NEEDED).filter(is_bad).to_pylist()
        for row, reason in zip(bad, reasons.filter(is_bad).to_pylist(), strict=True):
            own = dict(row["properties"] or ())
            message = _UnfitBody(row["topic"], row["key"], row["tags"], row["msgId"], own)
            failed = Failed(message, _TYPE, reason[:_MAX_TEXT], None, None, "", -1, wall_ms())
            value = row["value"] or b""
            properties = list(properties_of(failed).items())
            self._rows.append(
                {"value": value, "key": row["key"], "tags": row["tags"], "properties": properties}
            )
            self._bytes += len(value)
            if len(self._rows) >= _MAX_UNSENT_ROWS or self._bytes >= _MAX_UNSENT_BYTES:
                self.send()

    def send(self) -> None:
        """All that are collected. Raises what a send raises."""
        if not self._rows:
            return
        from mqspark.arrow.writing.sendrows import send_rows

        schema = pa.schema(
            [("value", pa.binary()), ("key", pa.string()), ("tags", pa.string()), ("properties", _MAP)]
        )
        batch = pa.RecordBatch.from_pylist(self._rows, schema=schema)
        send_rows(self._choice, [batch], first_turn=0)
        self._rows, self._bytes = [], 0
