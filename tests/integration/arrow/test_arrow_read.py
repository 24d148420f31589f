"""``mqspark.arrow.read`` on a broker over real sockets: in place and over TCP, bounds, limits, what a reader leaves."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import mqspark.arrow
from mqspark.arrow.cluster.cluster_queues import DataLoss
from mqspark.arrow.reading import openplaces
from mqspark.errors import ConfigError, MQError, NoSuchTopic
from mqspark.testing import Broker

ROWS = 3_000
SENT = pa.table(
    {
        "key": [f"order-{number}" for number in range(ROWS)],
        "value": [f"body {number} ".encode() * (1 + number % 7) for number in range(ROWS)],
        "tags": [("paid", "open", None)[number % 3] for number in range(ROWS)],
        "partition": [number % 4 for number in range(ROWS)],
    }
)
everywhere = pytest.mark.parametrize("local", [True, False], ids=["in place", "over TCP"])


def crc_of(values: Any) -> int:
    return sum(zlib.crc32(value) for value in values)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        assert mqspark.arrow.write(running.namesrv, "Orders", SENT) == ROWS
        yield running


@everywhere
def test_all_rows_come_with_their_crcs_in_the_order_of_each_queue(broker: Broker, local: bool) -> None:
    reader = mqspark.arrow.read(broker.namesrv, "Orders", local=local)
    assert reader.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "tags"]
    table = reader.read_all()
    assert table.num_rows == ROWS
    assert crc_of(table["value"].to_pylist()) == crc_of(SENT["value"].to_pylist())
    for queue in range(4):
        here = table.filter(pa.compute.equal(table["partition"], queue))
        assert here["offset"].to_pylist() == list(range(ROWS // 4))
        assert here["key"].to_pylist() == [f"order-{number}" for number in range(queue, ROWS, 4)]


@everywhere
def test_a_batch_has_few_rows_and_bytes(broker: Broker, local: bool) -> None:
    batches = list(mqspark.arrow.read(broker.namesrv, "Orders", local=local, batch_rows=100))
    assert max(batch.num_rows for batch in batches) == 100
    assert sum(batch.num_rows for batch in batches) == ROWS
    batches = list(mqspark.arrow.read(broker.namesrv, "Orders", local=local, batch_bytes=10_000))
    assert max(batch.nbytes for batch in batches) <= 20_000
    assert sum(batch.num_rows for batch in batches) == ROWS


@everywhere
def test_the_bounds_are_offsets_times_or_now(broker: Broker, local: bool) -> None:
    def count(**bounds: Any) -> int:
        return mqspark.arrow.read(broker.namesrv, "Orders", local=local, **bounds).read_all().num_rows

    assert count(start={0: 10, 1: -1, 2: -1, 3: -1}, end={0: 30, 1: -1, 2: -1, "dev:3": -1}) == 20
    now = datetime.now(UTC)
    assert count(start=now - timedelta(hours=1), end="now") == ROWS
    assert count(start=now + timedelta(hours=1)) == 0
    assert count(end=now - timedelta(hours=1)) == 0
    assert count(start="latest") == 0


@everywhere
def test_rows_by_tag_filter_and_key(broker: Broker, local: bool) -> None:
    def read(**choices: Any) -> pa.Table:
        return mqspark.arrow.read(broker.namesrv, "Orders", local=local, **choices).read_all()

    assert set(read(tags="paid")["tags"].to_pylist()) == {"paid"}
    assert read(tags=["paid", "open"]).num_rows == 2 * ROWS // 3
    assert read(key="order-7")["value"].to_pylist() == [b"body 7 "]
    assert read(key=["order-8", "order-9"], columns=["key"]).to_pylist() == [
        {"key": "order-8"},
        {"key": "order-9"},
    ]


def test_the_end_is_what_it_was_at_the_call(broker: Broker) -> None:
    mqspark.arrow.write(broker.namesrv, "Later", pa.table({"value": ["a", "b"]}))
    reader = mqspark.arrow.read(broker.namesrv, "Later")
    mqspark.arrow.write(broker.namesrv, "Later", pa.table({"value": ["c"]}))
    assert sorted(reader.read_all()["value"].to_pylist()) == [b"a", b"b"]


def test_a_reader_that_is_dropped_closes_its_connections_and_files(broker: Broker) -> None:
    for local in (True, False):
        made: list[openplaces.OpenPlaces] = []
        begin = openplaces.OpenPlaces.__init__

        def noted(self: openplaces.OpenPlaces, begin: Any = begin, made: Any = made) -> None:
            begin(self)
            made.append(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(openplaces.OpenPlaces, "__init__", noted)
            reader = mqspark.arrow.read(broker.namesrv, "Orders", local=local, batch_rows=10)
            reader.read_next_batch()
            (opened,) = made
            assert len(opened.stores) == local
            assert len(opened.connections) == (not local)
            held = list(opened.connections.values())
            del reader
            assert not opened.stores
            assert not opened.connections
            for connection in held:
                assert connection.fileno() == -1


@pytest.mark.parametrize(
    ("choices", "key"),
    [
        ({"columns": ["valeu"]}, "columns"),
        ({"columns": "value"}, "columns"),
        ({"columns": []}, "columns"),
        ({"start": 5}, "start"),
        ({"start": datetime(2026, 1, 1)}, "start"),  # noqa: DTZ001 -- refused for that
        ({"start": "now and then"}, "start"),
        ({"start": {}}, "start"),
        ({"start": {0: 1.5}}, "start"),
        ({"start": {"zero": 1}}, "start"),
        ({"start": {0: 1}}, "start"),
        ({"start": {9: 1, 0: 0, 1: 0, 2: 0, 3: 0}}, "start"),
        ({"start": dict.fromkeys(range(4), 5), "end": dict.fromkeys(range(4), 2)}, "end"),
        ({"start": "group"}, "start"),
        ({"end": "earliest"}, "end"),
        ({"tags": ["a", "*"]}, "tags"),
        ({"tags": 5}, "tags"),
        ({"key": ""}, "key"),
        ({"key": "a", "tags": "b"}, "key"),
        ({"key": "a", "start": "latest"}, "key"),
        ({"sql_filter": "a >"}, "sql_filter"),
        ({"sql_filter": "a > 1", "tags": "b"}, "sql_filter"),
        ({"group": "bad group"}, "group"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"batch_bytes": 1.5}, "batch_bytes"),
        ({"archive": "/nowhere", "tags": "a"}, "archive"),
        ({"retry_timeout_s": -1}, "retry_timeout_s"),
        ({"schema": "latest"}, "schema"),
        ({"schema": pa.schema([("id", pa.duration("s"))])}, "schema"),
        ({"schema": pa.schema([("offset", pa.int64())])}, "schema"),
        ({"reason_column": "why"}, "reason_column"),
    ],
)
def test_what_is_refused_names_the_keyword(broker: Broker, choices: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        mqspark.arrow.read(broker.namesrv, "Orders", **choices)
    assert refused.value.key == key
    assert key in str(refused.value)


def test_errors_of_a_cluster_are_typed(broker: Broker) -> None:
    with pytest.raises(NoSuchTopic):
        mqspark.arrow.read(broker.namesrv, "Nowhere")
    with pytest.raises(ConfigError, match="topic"):
        mqspark.arrow.read(broker.namesrv, "no/topic")
    with pytest.raises(DataLoss, match="offsets 0 to 750, not 751"):
        mqspark.arrow.read(broker.namesrv, "Orders", start=dict.fromkeys(range(4), 751))
    with pytest.raises(MQError):
        mqspark.arrow.read("127.0.0.1:1", "Orders")
