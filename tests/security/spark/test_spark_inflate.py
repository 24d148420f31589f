"""Compressed bodies and Arrow streams as weapons against Spark's workers: what a few kilobytes become is bounded for
each message and each batch, and ``failOnDataLoss=false`` gets past what is not."""

from __future__ import annotations

import logging
import random
import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pyarrow as pa
import pytest

from mqspark.arrow.cluster.cluster_queues import ClusterQueues as Driver
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.reading.range_fetch import read_task
from mqspark.arrow.records.arrowstream import MAX_COLUMNS, batches_of
from mqspark.arrow.records.decode import INFLATED_BYTES, Decoder
from mqspark.arrow.records.records import Records, record_positions, unwrap_inner_batches
from mqspark.base.logs import forget
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.record.compression import LIMITS, ZSTD, InflateLimits
from mqspark.testing import Broker, Clients, Cluster
from pyspark_pymq.options import ReadOptions
from pyspark_pymq.reading.batch import RangePartition, partitions_of
from pyspark_pymq.typed import arrowrows
from pyspark_pymq.typed.arrowrows import unpack
from tests.security.requests.test_inflate import (
    MESSAGES,
    MIB,
    PACK,
    bomb,
    flag_of,
    inner,
    peak_below,
    record,
    send,
)
from tests.support.oldarrow import compressed_as_by_arrow_0_17

COLUMNS = ("offset", "value")


@pytest.fixture(autouse=True)
def all_lines() -> None:
    forget()


def decoder(strict: bool = True, limits: InflateLimits = LIMITS) -> Decoder:
    return Decoder(COLUMNS, topic="T", broker="b", queue_id=0, strict=strict, limits=limits)


def records_of(raw: bytes) -> tuple[Records, object]:
    records = Records(raw)
    return records, record_positions(records)


def lines_of_spark(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Without what brokers of this process log."""
    return [record for record in caplog.records if record.name.startswith(("mqspark.arrow", "pyspark_pymq"))]


@pytest.mark.parametrize("kind", PACK)
def test_a_batch_ends_where_bodies_have_become_much(kind: int) -> None:
    """Sixty messages that are each within the limits, and plain ones among them."""
    raw = b"".join(
        record(b"plain", 0, number)
        if number % 3
        else record(bomb(kind, 4 if number else 3), flag_of(kind), number)
        for number in range(3 * MESSAGES)
    )
    limits = InflateLimits(max_ratio=0)
    seen = []
    with peak_below(6 * INFLATED_BYTES):
        for batch in decoder(limits=limits).batches(*records_of(raw)):
            assert batch.nbytes < INFLATED_BYTES + MIB
            seen += batch.column("offset").to_pylist()
            assert batch.column("value")[0].as_py() == bytes((4 if seen[-batch.num_rows] else 3) * MIB)
    assert seen == list(range(3 * MESSAGES))


@pytest.mark.parametrize("kind", PACK)
def test_sixty_bombs_become_nulls_or_an_error_that_says_what_to_do(
    kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    count = MESSAGES if kind == ZSTD else 10  # to inflate others up to their limits takes longer
    raw = b"".join(record(bomb(kind), flag_of(kind), number) for number in range(count))
    raw += record(b"honest", 0, count)
    with (
        peak_below(150 * MIB),
        pytest.raises(InvalidMessage, match=r"offset 0 of queue 0.*maxInflateRatio.*failOnDataLoss=false"),
    ):
        list(decoder().batches(*records_of(raw)))
    with peak_below(150 * MIB), caplog.at_level(logging.WARNING):
        values = [
            value
            for batch in decoder(strict=False).batches(*records_of(raw))
            for value in batch.column("value").to_pylist()
        ]
    assert values == [None] * count + [b"honest"]
    assert len(lines_of_spark(caplog)) == 1


def test_without_a_ratio_a_batch_has_one_of_them_at_a_time() -> None:
    raw = b"".join(record(bomb(ZSTD, 63), flag_of(ZSTD), number) for number in range(5))
    limits = InflateLimits(max_ratio=0)
    with peak_below(200 * MIB):
        sizes = [batch.num_rows for batch in decoder(limits=limits).batches(*records_of(raw))]
    assert sizes == [1] * 5


@pytest.mark.parametrize("kind", PACK)
def test_inner_batches_come_in_parts(kind: int) -> None:
    items = [(0, bytes(MIB), b"")] * 3
    raw = b"".join(inner(items, kind, 3 * number) for number in range(MESSAGES))
    offsets: list[int] = []
    with peak_below(12 * INFLATED_BYTES):
        for part in unwrap_inner_batches(*records_of(raw)):
            for batch in decoder().batches(*part):
                offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(3 * MESSAGES))


def test_an_inner_batch_that_is_a_bomb_is_an_error_or_left_out() -> None:
    bad = [
        inner([(0, bytes(64 * MIB), b"")], ZSTD, 0),
        inner([(0, b"", b"")] * 100_000, ZSTD, 1),
        inner([], ZSTD, 2)[:-1] + b"\x00",
    ]
    fine = inner([(0, b"a", b""), (0, b"b", b"")], ZSTD, 10)
    for each in bad[:2]:
        with peak_below(100 * MIB), pytest.raises(InvalidMessage, match="failOnDataLoss=false"):
            list(unwrap_inner_batches(*records_of(each)))
    values = []
    for part in unwrap_inner_batches(*records_of(b"".join(bad[:2]) + fine), strict=False):
        values += decoder()(*part).column("value").to_pylist()
    assert values == [b"a", b"b"]


def test_the_limits_are_options() -> None:
    parsed = ReadOptions.parse(
        {"nameserver": "h:1", "topic": "T", "maxInflatedBytes": "8m", "maxInflateRatio": "50"},
        streaming=False,
    )
    assert parsed.limits == InflateLimits(8 * MIB, 50)
    assert ReadOptions.parse({"nameserver": "h:1", "topic": "T"}, streaming=True).limits == LIMITS


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with Broker() as running:
        yield running


@pytest.mark.parametrize("local", ["true", "false"])
def test_a_read_gets_past_sixty_bombs(broker: Cluster, local: str) -> None:
    with Clients(broker.namesrv) as clients:
        topic = clients.topic(queues=1)
        for _ in range(MESSAGES):
            send(broker, topic, bomb(ZSTD), flag_of(ZSTD))
        send(broker, topic, b"honest", 0)
    given = {"nameserver": broker.namesrv, "topic": topic, "localRead": local}

    def values(**more: str) -> list[bytes | None]:
        options = ReadOptions.parse({**given, **more}, streaming=False)
        driver = Driver(options)
        try:
            queues = driver.queues()
            start, end = driver.starting(queues), driver.ending(queues)
            ranges = [QueueRange(queue, start[queue], end[queue]) for queue in queues]
            partitions = partitions_of(driver, ranges, options, COLUMNS)
        finally:
            driver.client.close()
        found: list[bytes | None] = []
        for partition in partitions:
            assert isinstance(partition, RangePartition)
            for batch in read_task(partition.task):
                found += batch.column("value").to_pylist()
        return found

    with pytest.raises(InvalidMessage, match="failOnDataLoss=false makes it null"):
        values()
    with peak_below(200 * MIB):
        assert values(failOnDataLoss="false") == [None] * MESSAGES + [b"honest"]
    with pytest.raises(InvalidMessage, match="inflates past 1048576"):
        values(maxInflatedBytes="1m")


# --- Arrow streams ------------------------------------------------------------------------------------------


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write(table)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


@cache
def honest() -> pa.Table:
    return pa.table(
        {
            "a": pa.array(range(1000), pa.int64()),
            "b": [None if number % 7 == 0 else f"text {number}" for number in range(1000)],
            "c": [[1, 2, number] for number in range(1000)],
            "d": [{"x": number, "y": "z"} for number in range(1000)],
            "e": pa.array(["red", "blue"] * 500).dictionary_encode(),
            "f": [[("k", number)] for number in range(1000)],
            "g": pa.nulls(1000),
        },
        schema=pa.schema(
            [
                ("a", pa.int64()),
                ("b", pa.string()),
                ("c", pa.list_(pa.int64())),
                ("d", pa.struct([("x", pa.int64()), ("y", pa.string())])),
                ("e", pa.dictionary(pa.int32(), pa.string())),
                ("f", pa.map_(pa.string(), pa.int64())),
                ("g", pa.null()),
            ]
        ),
    )


def batches(raw: bytes, limits: InflateLimits = LIMITS) -> pa.Table:
    return pa.Table.from_batches(list(batches_of(pa.py_buffer(raw), limits)), honest().schema)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_an_honest_stream_is_as_it_was(compression: str | None) -> None:
    assert batches(stream(honest(), compression)).equals(honest())


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_stream_that_becomes_much_is_refused_before_it_does(compression: str) -> None:
    huge = stream(pa.table({"a": pa.array([bytes(64 * MIB)] * 2, pa.binary())}), compression)
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidMessage, match="maxInflateRatio"):
        next(batches_of(pa.py_buffer(huge), LIMITS))
    assert pa.total_allocated_bytes() == before


def test_a_compressed_buffer_that_lies_about_its_length_is_refused() -> None:
    honest = stream(pa.table({"a": pa.array([b"x" * 100_000], pa.binary())}), "zstd")
    (claimed,) = (
        place
        for place in range(0, len(honest) - 8, 8)
        if struct.unpack_from("<q", honest, place) == (100_000,)
    )
    for lie in (1 << 40, 1 << 62, -2, -(1 << 60)):
        with pytest.raises(InvalidMessage):
            next(
                batches_of(
                    pa.py_buffer(honest[:claimed] + struct.pack("<q", lie) + honest[claimed + 8 :]), LIMITS
                )
            )


def test_a_stream_that_is_compressed_as_before_is_refused() -> None:
    huge = compressed_as_by_arrow_0_17(64 * MIB)
    before = pa.total_allocated_bytes()
    with pa.ipc.open_stream(huge) as heeded:
        batch = next(iter(heeded))
        assert pa.total_allocated_bytes() - before >= 64 * MIB, (
            "pyarrow heeds the mark: else the check may go"
        )
    del batch, heeded
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidMessage, match=r"compressed as by Arrow 0\.17"):
        next(batches_of(pa.py_buffer(huge), LIMITS))
    assert pa.total_allocated_bytes() == before


def test_rows_without_bytes_are_counted() -> None:
    nothing = stream(pa.table({"a": pa.nulls(1 << 30)}))
    with pytest.raises(InvalidMessage, match="1073741824 rows"):
        next(batches_of(pa.py_buffer(nothing), LIMITS))


def test_values_that_stand_for_many_bytes_are_measured() -> None:
    long = pa.array(["x" * MIB])
    zeros = pa.array([0] * 1000, pa.int8())
    short = pa.DictionaryArray.from_arrays(zeros, long)
    view = pa.py_buffer(struct.pack("<i4sii", MIB, b"xxxx", 0, 0) * 1000)
    views = pa.Array.from_buffers(pa.string_view(), 1000, [None, view, pa.py_buffer(b"x" * MIB)])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1000], pa.int32()), long)
    nested = pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), short)
    for column in (short, views, runs, nested):
        with pytest.raises(InvalidMessage):
            next(batches_of(pa.py_buffer(stream(pa.table({"a": column}))), LIMITS))


def test_streams_of_changed_bytes_are_read_or_refused() -> None:
    """Offsets that lie would have Arrow follow them anywhere."""
    chance = random.Random(1)
    originals = [stream(honest()), stream(honest(), "lz4")]
    refused = 0
    for _ in range(1_500):
        raw = bytearray(chance.choice(originals))
        for _ in range(chance.randint(1, 6)):
            raw[chance.randrange(len(raw))] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        try:
            for batch in batches_of(pa.py_buffer(bytes(raw)), LIMITS):
                pa.Table.from_batches([batch]).combine_chunks()
        except (InvalidMessage, pa.ArrowException, OSError):
            refused += 1
    assert refused > 300


def test_typed_rows_get_past_a_bad_message(caplog: pytest.LogCaptureFixture) -> None:
    schema = pa.schema([("a", pa.int64())])
    table = pa.table({"a": pa.array([1, 2], pa.int64())})
    huge = stream(pa.table({"a": pa.array([0] * (32 * MIB), pa.int64())}), "zstd")
    bodies = [stream(table), huge, b"", b"junk", None, stream(pa.table({"a": ["x"]})), stream(table)]
    batch = pa.record_batch({"offset": range(len(bodies)), "value": pa.array(bodies, pa.binary())})
    with pytest.raises(InvalidMessage, match=r"offset 1 .*failOnDataLoss=false"):
        list(unpack([batch], schema))
    with caplog.at_level(logging.WARNING):
        rows = pa.Table.from_batches(list(unpack([batch], schema, strict=False)), schema)
    assert rows.column("a").to_pylist() == [1, 2, 1, 2]
    assert len(lines_of_spark(caplog)) == 1


def messages(*bodies: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(bodies, pa.binary()), pa.array(range(len(bodies)), pa.int64())], ["value", "offset"]
    )


def test_rows_without_bytes_are_counted_for_messages_that_are_read_together() -> None:
    some = stream(pa.table({"a": pa.nulls(10_000)}))
    schema = pa.schema([("a", pa.int64())])
    assert sum(rows.num_rows for rows in unpack([messages(some)], schema)) == 10_000
    with pytest.raises(InvalidMessage, match="10000 rows"):
        list(unpack([messages(*[some] * 100)], schema))
    million = stream(pa.table({"a": pa.nulls(1 << 20)}))
    with pytest.raises(InvalidMessage, match="1048576 rows"):
        list(unpack([messages(million)], schema))


def test_a_message_of_too_many_columns_is_refused() -> None:
    kind = pa.struct([(f"x{number}", pa.int8()) for number in range(MAX_COLUMNS)])
    for table in (
        pa.table({f"c{number}": pa.nulls(0) for number in range(MAX_COLUMNS + 1)}),
        pa.table({"a": pa.array([], kind)}),
    ):
        with pytest.raises(InvalidMessage, match="columns, more than"):
            list(batches_of(pa.py_buffer(stream(table)), LIMITS))


def test_the_columns_of_a_message_are_looked_up_once() -> None:
    """Not by comparing each column with each other one: 8,000 columns took 22 seconds."""
    names = [f"Column{number}" for number in range(8_000)]
    wide = stream(pa.table({name: pa.array([1], pa.int8()) for name in names}))
    schema = pa.schema([(name.lower(), pa.int8()) for name in names])
    looked_up = Counter[str]()

    class Name(str):
        def lower(self) -> str:
            looked_up["lower"] += 1
            return super().lower()

    assert arrowrows.column_places([Name(each) for each in names], names) == list(range(8_000))
    assert looked_up["lower"] == 8_000
    (rows, again) = unpack([messages(wide, wide)], schema)
    assert rows.num_columns == again.num_columns == 8_000


def test_columns_are_found_as_spark_finds_them() -> None:
    table = pa.table([pa.array([number]) for number in (1, 2, 3)], names=["A", "b", "a"])
    schema = pa.schema([("a", pa.int64()), ("B", pa.int64()), ("c", pa.int64())])
    (rows,) = unpack([messages(stream(table))], schema)
    assert rows.to_pylist() == [{"a": 3, "B": 2, "c": None}]


@pytest.mark.parametrize("text", ["9" * 5_000, "9" * 30])
@pytest.mark.parametrize(
    "option",
    ["maxOffsetsPerTrigger", "maxInflateRatio", "startingTimestamp", "retryTimeout", "maxInflatedBytes"],
)
def test_long_numbers_are_refused_by_the_name_of_their_option(option: str, text: str) -> None:
    options = {"nameserver": "127.0.0.1:9876", "topic": "T", option: text}
    with pytest.raises(ConfigError, match=option) as refused:
        ReadOptions.parse(options, streaming=True)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingOffsets", '{"T":' * 100_000),
        ("startingOffsets", '{"T": {"0": ' + "9" * 5_000 + "}}"),
        ("startingOffsets", '{"T": {"' + "9" * 5_000 + '": 1}}'),
        ("startingOffsetsByTimestamp", '{"T":' + "[" * 100_000),
        ("assign", '{"T":' + "[" * 100_000),
        ("assign", '{"T": ["' + "9" * 5_000 + '"]}'),
        ("assign", '{"T": [' + "9" * 5_000 + "]}"),
        ("topicPattern", "(" * 100_000),
        ("topicPattern", "a{99999999999999999999}"),
    ],
)
def test_deep_and_large_texts_are_refused_by_the_name_of_their_option(option: str, text: str) -> None:
    options = {"nameserver": "127.0.0.1:9876", option: text}
    if option.startswith("starting"):
        options["topic"] = "T"
    with pytest.raises(ConfigError, match=option):
        ReadOptions.parse(options, streaming=True)
