"""payloadFormat=arrow: rows packed into messages that a broker accepts."""

from __future__ import annotations

import pyarrow as pa

from pyspark_pymq.typed.arrowrows import pack, unpack

MAX_MESSAGE_BYTES = 4 << 20
"""maxMessageSize of a broker."""


def test_large_rows_that_are_neighbours_share_no_message_that_is_too_large() -> None:
    texts = ["x" * 100] * 5000 + ["y" * 1_000_000] * 12 + ["z" * 100] * 5000
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(texts))), pa.array(texts)], ["id", "text"])
    packed = list(pack([batch.slice(0, 100), batch], 1 << 20))
    sizes = [len(value.as_buffer()) for message in packed for value in message.column("value")]
    assert max(sizes) < MAX_MESSAGE_BYTES
    assert len(sizes) < 30
    messages = [
        pa.RecordBatch.from_arrays([message.column("value"), pa.array([0])], ["value", "offset"])
        for message in packed
    ]
    ids = [row for rows in unpack(messages, batch.schema) for row in rows.column("id").to_pylist()]
    assert ids == [*range(100), *range(len(texts))]
