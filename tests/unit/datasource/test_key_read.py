"""``option("key", ...)``: what a broker's index finds by hash is compared by topic and key."""

from __future__ import annotations

from typing import Any

import pytest

from mqspark.arrow.reading import keyfetch
from mqspark.arrow.reading.keyfetch import KeyLookup
from mqspark.record.record import encode_record
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.reading.keyread import KeyReader, LookupPartition


def record(topic: str, properties: bytes, body: bytes, position: int) -> bytes:
    return encode_record(topic=topic, body=body, properties=properties, physical_offset=position)


def test_rows_of_other_topics_and_keys_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's index answers AaTopic#BB with all of one hash."""
    found = b"".join(
        (
            record("BBTopic", b"KEYS\x01BB\x02", b"of another topic", 0),
            record("AaTopic", b"KEYS\x01Aa\x02UNIQ_KEY\x01AaU\x02", b"of another key", 200),
            record("AaTopic", b"KEYS\x01x BB\x02", b"meant", 400),
            record("AaTopic", b"KEYS\x01x\tBB\x02", b"one key with a tab", 600),
            record("AaTopic", b"UNIQ_KEY\x01BB\x02", b"by its unique key", 800),
        )
    )

    class Client:
        def __init__(self, *arguments: Any, **more: Any) -> None: ...

        def messages_by_key(self, address: str, topic: str, key: str) -> list[bytes]:
            return [found]

        def close(self) -> None: ...

    monkeypatch.setattr(keyfetch, "BlockingClient", Client)
    options = ReadOptions.parse(
        {"nameserver": "127.0.0.1:9876", "topic": "AaTopic", "key": "BB"}, streaming=False
    )
    batches = KeyReader(options, ("topic", "value")).read(
        LookupPartition(KeyLookup(("AaTopic",), "b-a", "127.0.0.1:1"))
    )
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"meant", b"by its unique key"]
    assert {row["topic"] for row in rows} == {"AaTopic"}
