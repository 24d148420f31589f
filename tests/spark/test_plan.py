"""Options, offsets and planning: pure functions, no Spark session."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqspark
import pyspark_pymq
from mqspark.arrow.cluster.queuechoice import Position
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.cluster.readtasks import SMALL_TASK_ROWS, plan_tasks
from mqspark.arrow.records.encode import Compression, key_hashes
from mqspark.errors import ConfigError, MQError
from mqspark.message import MessageQueue, java_hash
from pyspark_pymq.options import ReadOptions, WriteOptions, columns_of
from pyspark_pymq.reading.stream_offsets import Positions, batch_ranges, limit_rows
from tests.support.processes import run_python

BASE = {"nameserver": "127.0.0.1:9876", "topic": "T"}


def queue(number: int, broker: str = "a", topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, broker, number)


# --- options --------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    batch, stream = (ReadOptions.parse(BASE, streaming=streaming) for streaming in (False, True))
    assert (batch.starting.position, batch.ending.position) == (Position.EARLIEST, Position.LATEST)
    assert stream.starting.position is Position.LATEST
    assert stream.fail_on_data_loss


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"colour": "red"}, "colour"),
        ({"nameserver": ""}, "nameserver"),
        ({"nameserver": "host"}, "nameserver"),
        ({"topic": "no spaces"}, "topic"),
        ({"topic": ","}, "topic"),
        ({"subscribe": "U"}, "subscribe"),
        ({"path": "U"}, "path"),
        ({"topicPattern": "T.*"}, "topicPattern"),
        ({"assign": '{"T":[0]}'}, "assign"),
        ({"group": "a b"}, "group"),
        ({"startingOffsets": "newest"}, "startingOffsets"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"startingOffsets": "group"}, "startingOffsets"),
        ({"startingOffsets": '{"T":{"0":-1}}'}, "startingOffsets"),
        ({"startingOffsets": '{"T":{"0":-3}}'}, "startingOffsets"),
        ({"startingOffsets": '{"T":{"x":1}}'}, "startingOffsets"),
        ({"startingOffsets": '{"T":[1]}'}, "startingOffsets"),
        ({"startingOffsets": "{"}, "startingOffsets"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "startingTimestamp"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingOffsetsByTimestamp": '{"T":{"0":-5}}'}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "startingOffsetsByTimestampStrategy"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": "group"}, "endingOffsets"),
        ({"endingOffsets": '{"T":{"0":-2}}'}, "endingOffsets"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"minPartitions": "5", "maxPartitions": "4"}, "minPartitions"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"tags": "a || *"}, "tags"),
    ],
)
def test_a_bad_batch_option_is_named(options: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions.parse(BASE | options, streaming=False)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(option, '{"T":{"0":5}}')
    with pytest.raises(ConfigError, match=f"^{option}: a stream has no end"):
        ReadOptions.parse(BASE | {option: value}, streaming=True)


def test_no_topic_at_all() -> None:
    with pytest.raises(ConfigError, match=r"^topic: required"):
        ReadOptions.parse({"nameserver": "h:1"}, streaming=False)


def test_aliases_of_the_kafka_source() -> None:
    options = {
        "nameserver": "h:1",
        "subscribePattern": "T.*",
        "failondataloss": "FALSE",
        "MINPARTITIONS": "3",
    }
    parsed = ReadOptions.parse(options, streaming=True)
    assert (parsed.topics.pattern, parsed.fail_on_data_loss, parsed.min_partitions) == ("T.*", False, 3)
    assigned = ReadOptions.parse({"nameserver": "h:1", "assign": '{"T":[0,"b:1"]}'}, streaming=True)
    assert assigned.topics.assigned == {"T": ("0", "b:1")}
    assert ReadOptions.parse(BASE | {"tags": "a || b||"}, streaming=True).tags == ("a", "b")


def test_write_options() -> None:
    parsed = WriteOptions.parse({"nameserver": "h:1", "topic": "T", "checkpointLocation": "/c"})
    assert parsed.topic == "T"
    for options, key in (
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"batchBytes": "5"}, "batchBytes"),
        ({"batchBytes": "much"}, "batchBytes"),
        ({"sendTimeoutMs": "0"}, "sendTimeoutMs"),
        ({"retryTimeout": "soon"}, "retryTimeout"),
        ({"group": "a b"}, "group"),
        ({"topic": "no spaces"}, "topic"),
        ({"payloadFormat": "xml"}, "payloadFormat"),
        ({"deliveryGuarantee": "maybe"}, "deliveryGuarantee"),
        ({"transactionBatch": "1"}, "transactionBatch"),
        ({"transactionBatch": "x", "deliveryGuarantee": "exactly-once"}, "transactionBatch"),
        ({"compression": "snappy"}, "compression"),
        ({"compressionThreshold": "1k"}, "compressionThreshold"),
        ({"compression": "zlib", "compressionThreshold": "0"}, "compressionThreshold"),
    ):
        with pytest.raises(ConfigError) as caught:
            WriteOptions.parse({"nameserver": "h:1", "topic": "T"} | options)
        assert caught.value.key == key
        assert str(caught.value).startswith(f"{key}: ")
    assert parsed.compression is None
    small = WriteOptions.parse({"nameserver": "h:1", "compression": "LZ4", "batchBytes": "64k"})
    assert (small.compression, small.batch_bytes) == (Compression(1, 4096), 65_536)


def test_a_codec_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"^compression: ZSTD bodies need the extra"):
        WriteOptions.parse({"nameserver": "h:1", "topic": "T", "compression": "zstd"})


# --- offsets --------------------------------------------------------------------------------------------------

offset_maps = st.dictionaries(
    st.builds(queue, st.integers(0, 12), st.sampled_from(["a", "b:1"]), st.sampled_from(["T", "U"])),
    st.integers(0, 1000),
    max_size=12,
)


@given(offset_maps, offset_maps)
def test_offsets_survive_spark(offsets: dict[MessageQueue, int], begun: dict[MessageQueue, int]) -> None:
    text = json.dumps(Positions(offsets, begun).to_json())
    again = Positions.from_json(json.loads(text))
    assert again == Positions(offsets, begun)
    shuffled = Positions(dict(reversed(list(offsets.items()))), dict(reversed(list(begun.items()))))
    assert json.dumps(shuffled.to_json()) == text


@pytest.mark.slow("processes of its own; the texts of offsets beside it are the fast twins")
def test_offset_text_does_not_depend_on_the_process() -> None:
    program = (
        "import json; from pyspark_pymq.reading.stream_offsets import Positions; "
        "from mqspark.message import MessageQueue as Q;"
        "print(json.dumps(Positions({q: 1 for q in {Q(t, 'b', n) for t in 'xyz' for n in range(20)}}).to_json()))"
    )
    texts = set()
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-c", program]
        texts.add(
            subprocess.run(command, env={"PYTHONHASHSEED": seed}, check=True, capture_output=True).stdout
        )
    assert len(texts) == 1


@pytest.mark.parametrize(
    "document", [{}, {"v": 2, "q": {}}, {"v": 1}, {"v": 1, "q": {"T": 5}}, {"v": 1, "q": {"T": {"x": 1}}}]
)
def test_a_checkpoint_of_something_else(document: dict[str, Any]) -> None:
    with pytest.raises(MQError, match="checkpoint"):
        Positions.from_json(document)


def test_a_batch_may_not_run_backwards() -> None:
    with pytest.raises(MQError, match="before its start 7"):
        batch_ranges(Positions({queue(0): 7}), Positions({queue(0): 6}))
    with pytest.raises(MQError, match="no start"):
        batch_ranges(Positions({}), Positions({queue(0): 6}))


def test_the_end_of_a_batch_brings_the_start_of_new_queues() -> None:
    start = Positions({queue(0): 5, queue(1): 9})
    end = Positions({queue(0): 7, queue(1): 9, queue(2): 4}, begun={queue(2): 1})
    assert batch_ranges(start, end) == [QueueRange(queue(0), 5, 7), QueueRange(queue(2), 1, 4)]
    # What initialOffset says after a crash in batch 0 does not count: the recorded end carries the recorded start.
    moved = Positions({queue(0): 6}, begun={queue(0): 6})
    assert batch_ranges(moved, Positions({queue(0): 5}, begun={queue(0): 2})) == [QueueRange(queue(0), 2, 5)]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=9), st.integers(1, 600))
def test_a_limit_is_shared_out(backlogs: list[int], limit: int) -> None:
    start = {queue(i): 10 * i for i in range(len(backlogs))}
    latest = {q: start[q] + backlogs[q.queue_id] for q in start}
    ends = limit_rows(start, latest, limit)
    taken = {q: ends[q] - start[q] for q in start}
    busy = [q for q in start if latest[q] > start[q]]
    assert all(1 <= taken[q] <= backlogs[q.queue_id] for q in busy)
    assert sum(taken.values()) == min(sum(backlogs), max(limit, len(busy)))
    assert limit_rows(start, latest, limit) == ends


# --- planning -------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 5_000_000), max_size=12),
    st.integers(1, 16),
    st.one_of(st.none(), st.integers(1, 20)),
    st.one_of(st.none(), st.integers(1, 20)),
)
def test_every_row_is_in_one_task(rows: list[int], cores: int, least: int | None, most: int | None) -> None:
    ranges = [QueueRange(queue(i), 7, 7 + n) for i, n in enumerate(rows)]
    tasks = plan_tasks(ranges, cores=cores, min_partitions=least, max_partitions=most)
    pieces = sorted(piece for task in tasks for piece in task)
    for each in ranges:
        position = each.start
        for piece in (piece for piece in pieces if piece.queue == each.queue):
            assert piece.start == position
            assert piece.rows > 0
            position = piece.end
        assert position == each.end
    assert all(tasks)
    if most is not None:
        assert len(tasks) <= most
    elif least is not None and sum(rows) >= least:
        assert len(tasks) >= least


def test_small_batches_are_one_task_and_larger_ones_a_task_a_core() -> None:
    def count(rows: int, queues: int = 8, cores: int = 4) -> int:
        return len(plan_tasks([QueueRange(queue(i), 0, rows // queues) for i in range(queues)], cores=cores))

    assert count(8) == 1
    assert count(SMALL_TASK_ROWS) == 1
    assert count(3 * SMALL_TASK_ROWS) == 3
    assert count(1_000_000) == 4
    assert count(16_000_000) == 8
    assert count(1_000_000, queues=1) == 1
    assert plan_tasks([], cores=4) == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 400)), max_size=8),
    st.integers(1, 120),
    st.integers(1, 4),
)
def test_no_task_has_more_rows_than_asked_for(
    sizes: list[tuple[int, int]], max_rows: int, cores: int
) -> None:
    ranges = [
        QueueRange(MessageQueue("T", "b", index), start, start + rows)
        for index, (start, rows) in enumerate(sizes)
    ]
    tasks = plan_tasks(ranges, cores=cores, max_rows=max_rows)
    assert all(0 < sum(each.rows for each in task) <= max_rows for task in tasks)
    planned = sorted(
        (each.queue, offset) for task in tasks for each in task for offset in range(each.start, each.end)
    )
    assert planned == sorted(
        (each.queue, offset) for each in ranges for offset in range(each.start, each.end)
    )


# --- the rest -------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.text(max_size=12), st.text("abc-9", max_size=80)), max_size=20))
def test_key_hashes_are_those_of_java(keys: list[str | None]) -> None:
    encoded = [None if key is None else key.encode() for key in keys]
    assert key_hashes(encoded).tolist() == [java_hash(key or "") for key in keys]


def test_the_schema_begins_as_the_kafka_source_does() -> None:
    plain = ("key", "value", "topic", "partition", "offset", "timestamp", "tags")
    assert columns_of({}) == plain
    assert columns_of({"includeProperties": "true"}) == (*plain, "properties")
    store = ("broker", "bornTimestamp", "msgId", "physicalOffset", "sysFlag")
    assert columns_of({"store": "/s"}) == (*plain, *store)


def test_columns_by_option() -> None:
    plain = columns_of({})
    assert columns_of({"columns": "value, msgId"}) == ("value", "msgId")
    assert columns_of({"columns": "*, broker,key"}) == (*plain, "broker")
    assert columns_of({"columns": "broker, *"}) == ("broker", *plain)
    assert columns_of({"columns": "value", "includeHeaders": "true"}) == ("value", "headers")
    assert columns_of({"columns": "value", "store": "/s"}) == ("value",)
    for wrong in ("", "value,", "body", "Value"):
        with pytest.raises(ConfigError, match=r"^columns: "):
            columns_of({"columns": wrong})


def test_filters_are_not_pushed_down() -> None:
    # Spark 4.1 to 4.3 give wrong rows with pushFilters when one load() is used twice.
    from pyspark.sql.datasource import DataSourceReader

    from pyspark_pymq.reading.batch import BatchReader

    assert BatchReader.pushFilters is DataSourceReader.pushFilters


def test_planning_loads_neither_arrow_nor_the_store() -> None:
    """A query's start waits for the process that plans it."""
    program = (
        "import sys, pyspark_pymq.reading.stream, mqspark.arrow.cluster.readtasks\n"
        "print([name for name in sys.modules if name in ('numpy', 'pyarrow', 'mqspark.store')])"
    )
    done = run_python(program, check=True)
    assert done.stdout.strip() == "[]"


def test_registered_from_a_zip_of_py_files(tmp_path: Path) -> None:
    """A stream's runner finds it by PYTHONPATH alone."""
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as packed:
        for path in Path(pyspark_pymq.__file__).parent.glob("*.py"):
            packed.write(path, f"pyspark_pymq/{path.name}")
        for path in Path(mqspark.__file__).parent.rglob("*.py"):
            packed.write(path, path.relative_to(Path(mqspark.__file__).parents[1]))
    program = f"""
import sys
from types import SimpleNamespace
sys.path.insert(0, {str(tmp_path / "lib.zip")!r})
import pyspark_pymq
context = SimpleNamespace(environment={{"PYTHONPATH": "/more"}})
session = SimpleNamespace(_sc=context, dataSource=SimpleNamespace(register=lambda source: print(source.name())))
pyspark_pymq.register(session)
pyspark_pymq.register(session)
print(context.environment["PYTHONPATH"])
pyspark_pymq.register(SimpleNamespace(dataSource=session.dataSource))  # Spark Connect
"""
    done = run_python(program, check=True)
    assert done.stdout.split() == ["pymq", "pymq", f"{tmp_path}/lib.zip:/more", "pymq"]


def test_importing_the_package_is_light_and_never_raises() -> None:
    program = "import sys, pyspark_pymq; print(sorted({'numpy', 'pyarrow', 'msgspec', 'fastapi'} & set(sys.modules)))"
    loaded = run_python(program, check=True).stdout
    assert "msgspec" not in loaded
    assert "fastapi" not in loaded
    blocked = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['numpy'] = None; sys.modules['pyarrow'] = None\n"
        "import pyspark_pymq\n"
        "assert not hasattr(pyspark_pymq, 'DefaultSource')\n"
        "assert pyspark_pymq.tuned_settings('4.0.1') is not None"
    )
    subprocess.run([sys.executable, "-c", blocked], check=True)
