"""An archive by somebody who wants to hurt: whoever can write to the storage can put any file there."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec import AbstractFileSystem

from mqspark.arrow.cluster.archives import Archive, Manifest, application, plan_archive, read_archive
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.files import locations
from mqspark.arrow.files.deltafiles import delta_table, opened_parquet
from mqspark.errors import MQError
from mqspark.message import MessageQueue
from mqspark.record.record import decode_records
from mqspark_server.tiered.archivechunks import ArchiveChunk
from mqspark_server.tiered.archivefetch import ArchiveFetcher
from tests.support import processes

TIME = datetime(2026, 1, 1, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "value": pa.array([b"a", b"b"]),
    "partition": pa.array([0, 0], pa.int32()),
    "offset": pa.array([0, 1]),
    "timestamp": pa.array([TIME, TIME], pa.timestamp("us", tz="UTC")),
    "broker": pa.array(["b", "b"]),
    "bornTimestamp": pa.array([TIME, TIME], pa.timestamp("us", tz="UTC")),
    "properties": pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string())),
    "physicalOffset": pa.array([0, 100]),
    "sysFlag": pa.array([0, 0], pa.int32()),
}


def archive(root: Path, columns: dict[str, Any], *, end: int = 2, more: bytes | None = None) -> Path:
    """One file with these columns, and a manifest that says [0, end) of queue 0."""
    table = root / "table"
    path = table / "topic=T" / "f.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path, compression="zstd")
    if more is not None:
        path.write_bytes(more)
    add = {"path": "topic=T/f.parquet", "size": 1, "partitionValues": {"topic": "T"}, "stats": "{}"}
    (table / "_delta_log").mkdir()
    (table / "_delta_log" / f"{0:020d}.json").write_text(json.dumps({"add": add}))
    (table / "_mqspark/b").mkdir(parents=True)
    sums = {"rows": 2, "value_crcs": 0, "offsets": 1, "positions": 100, "v": 1}
    manifest = {"broker": "b", "low": 0, "high": 1_000, "queues": {"T": {"0": [0, end]}}, **sums}
    (table / "_mqspark/b/0.json").write_text(json.dumps(manifest))
    return table


def fetcher(root: Path, table: Path | str) -> ArchiveFetcher:
    (root / "cache").mkdir(exist_ok=True)
    made = ArchiveFetcher(str(table), "b", root / "cache", 1 << 20, bytes(8))
    made.refresh({})
    return made


def test_the_good_one_is_read(tmp_path: Path) -> None:
    answer = fetcher(tmp_path, archive(tmp_path, GOOD)).fetch("T", 0, 0)
    chunk = ArchiveChunk(tmp_path / "cache", answer["chunk"])
    result, _ = chunk.get(0, 0, 0, 9, 32, 1 << 20, 800, None)
    messages = decode_records(b"".join(result.buffers))
    assert [(m.queue_offset, m.body, m.properties.get("k")) for m in messages] == [
        (0, b"a", "v"),
        (1, b"b", None),
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"offset": pa.array([1, 0])}, "is out of its range"),
        ({"offset": pa.array([0, 0])}, "is out of its range"),
        ({"offset": pa.array([0, 7])}, "is out of its range"),
        ({"offset": pa.array([-1, 0])}, "is out of its range"),
        ({"value": None}, "has no column value"),
        ({"sysFlag": None}, "has no column sysFlag"),
    ],
)  # fmt: skip
def test_rows_that_lie_are_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    columns = {name: column for name, column in (GOOD | change).items() if column is not None}
    hostile = fetcher(tmp_path, archive(tmp_path, columns))
    with pytest.raises(MQError, match=says):
        hostile.fetch("T", 0, 0)
    assert not list((tmp_path / "cache").glob("chunk-*")), "nothing is left in the cache"


@pytest.mark.parametrize(
    "change",
    [
        {"broker": pa.array(["c", "c"])},
        {"physicalOffset": pa.array([5_000, 6_000])},
        {"partition": pa.array([1, 2], pa.int32())},
        {"value": pa.array([None, None], pa.binary())},
    ],
)
def test_rows_of_others_are_passed_over(tmp_path: Path, change: dict[str, Any]) -> None:
    assert fetcher(tmp_path, archive(tmp_path, GOOD | change)).fetch("T", 0, 0) == {"chunk": None}


@pytest.mark.parametrize(
    "change",
    [
        {"offset": pa.array(["0", "1"])},
        {"value": pa.array(["a", "b"])},
        {"timestamp": pa.array([1, 2])},
        {"properties": pa.array(["k", "v"])},
        {"sysFlag": pa.array([1 << 40, 0])},
        {"partition": pa.array([None, None], pa.int32())},
        {"physicalOffset": pa.array([None, 1])},
    ],
)
def test_columns_of_other_types_are_errors_or_read_as_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    hostile = fetcher(tmp_path, archive(tmp_path, GOOD | change))
    try:
        answer = hostile.fetch("T", 0, 0)
    except Exception:  # the process answers each with an error; it must not be served
        answer = {"chunk": None}
    if answer["chunk"] is not None:
        chunk = ArchiveChunk(tmp_path / "cache", answer["chunk"])
        result, _ = chunk.get(0, 0, 0, 9, 32, 1 << 20, 800, None)
        assert decode_records(b"".join(result.buffers))


@pytest.mark.parametrize("more", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"\xff" * 4096])
def test_what_is_no_parquet(tmp_path: Path, more: bytes) -> None:
    hostile = fetcher(tmp_path, archive(tmp_path, GOOD, more=more))
    with pytest.raises((MQError, OSError)):
        hostile.fetch("T", 0, 0)


@pytest.mark.parametrize("pair", [("k\x01", "v"), ("k", "v\x02"), ("k", "v" * 40_000)])
def test_properties_that_no_record_can_hold_cost_no_message(tmp_path: Path, pair: tuple[str, str]) -> None:
    """A producer may have sent bytes that are no text: they must not keep others from what is behind them."""
    pairs = pa.array([[pair, ("other", "x")], []], pa.map_(pa.string(), pa.string()))
    answer = fetcher(tmp_path, archive(tmp_path, GOOD | {"properties": pairs})).fetch("T", 0, 0)
    result, _ = ArchiveChunk(tmp_path / "cache", answer["chunk"]).get(0, 0, 0, 9, 32, 1 << 20, 800, None)
    first, second = decode_records(b"".join(result.buffers))
    assert (first.body, dict(first.properties)) == (b"a", {"other": "x"})
    assert second.body == b"b"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b" " * 2_000, "has more than 1000 bytes"),
        (b"[" * 900, "is not a manifest"),
        (b"{}", "is not a manifest"),
        (b"\xff", "is not a manifest"),
    ],
)
def test_a_manifest_that_is_none_is_an_error_of_its_reader(
    tmp_path: Path, content: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the broker and by the driver of a Spark query, which both read a bounded number of its bytes."""
    monkeypatch.setattr(locations, "MAX_SMALL_FILE_BYTES", 1_000)
    table = archive(tmp_path, GOOD)
    (table / "_mqspark/b/0.json").write_bytes(content)
    with pytest.raises(MQError, match=says):
        Archive(str(table)).ranges()
    with pytest.raises(MQError, match=says):
        fetcher(tmp_path, table)


@pytest.mark.slow("decompresses hundreds of megabytes")
def test_a_bomb_costs_the_process_its_limit_and_no_more(tmp_path: Path) -> None:
    """400 MB of zeros in some kilobytes: an error, or the end of the process, below its limit of memory."""
    bomb = GOOD | {"value": pa.array([bytes(200 << 20), bytes(200 << 20)])}
    table = archive(tmp_path, bomb)
    assert (table / "topic=T/f.parquet").stat().st_size < 1 << 20
    (tmp_path / "cache").mkdir()
    hello = {
        "url": str(table),
        "broker": "b",
        "directory": str(tmp_path / "cache"),
        "chunk": 1 << 20,
        "memory": 150 << 20,
        "host": bytes(8).hex(),
    }
    requests = [
        {"id": 1, "do": "refresh", "floors": {}},
        {"id": 2, "do": "fetch", "topic": "T", "queue": 0, "offset": 0},
    ]
    log = tmp_path / "log"
    command = [sys.executable, "-m", "mqspark_server.tiered.archivefetch"]
    answers = []
    with processes.process(command, log, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for line in (hello, *requests):
            child.stdin.write(json.dumps(line) + "\n")
            child.stdin.flush()
            if line is not hello:
                answers.append(child.stdout.readline())
    assert json.loads(answers[0]) == {"id": 1, "bounds": "bounds.json"}
    assert not answers[1] or "error" in json.loads(answers[1])
    assert not list((tmp_path / "cache").glob("*.entries"))


class Spell:
    """Storage that answers wrongly below ``lying://``, as ``lie`` says."""

    lie: Callable[[str, bytes], bytes] = staticmethod(lambda path, data: data)
    hidden: Callable[[str], bool] = staticmethod(lambda path: False)
    failing: Callable[[str], bool] = staticmethod(lambda path: False)


class LyingStorage(AbstractFileSystem):  # type: ignore[misc]
    protocol = "lying"
    cachable = False

    def _real(self, path: str) -> str:
        return "/" + str(self._strip_protocol(path)).lstrip("/")

    def ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:
        if Spell.failing(path):
            raise OSError("500 Internal Server Error")
        folder = Path(self._real(path))
        found = [each for each in sorted(folder.iterdir()) if not Spell.hidden(str(each))]
        if not detail:
            return [str(each) for each in found]
        return [{"name": str(each), "size": each.stat().st_size, "type": "file"} for each in found]

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        real = self._real(path)
        if Spell.failing(real):
            raise OSError("500 Internal Server Error")
        data = Path(real).read_bytes()
        opened = io.BytesIO(Spell.lie(real, data))
        opened.size = len(data)  # type: ignore[attr-defined]
        return opened


@pytest.fixture
def spell() -> Iterator[type[Spell]]:
    fsspec.register_implementation("lying", LyingStorage, clobber=True)
    before = Spell.lie, Spell.hidden, Spell.failing
    yield Spell
    Spell.lie, Spell.hidden, Spell.failing = (staticmethod(each) for each in before)  # type: ignore[assignment]


COUNT = 300


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two topics in two commits: positions 0 to 300, every second one of the other topic."""
    table = tmp_path_factory.mktemp("written") / "table"
    for commit in (0, 1):
        adds = []
        for topic in "TU":
            numbers = range(commit * COUNT + "TU".index(topic), (commit + 1) * COUNT, 2)
            values = [f"{topic}{number:06d}".encode() * 20 for number in numbers]
            columns = {
                "value": pa.array(values),
                "partition": pa.array([0] * len(values), pa.int32()),
                "offset": pa.array([number // 2 for number in numbers]),
                "timestamp": pa.array([TIME] * len(values), pa.timestamp("us", tz="UTC")),
                "broker": pa.array(["b"] * len(values)),
                "bornTimestamp": pa.array([TIME] * len(values), pa.timestamp("us", tz="UTC")),
                "properties": pa.array([[]] * len(values), pa.map_(pa.string(), pa.string())),
                "physicalOffset": pa.array(list(numbers)),
                "sysFlag": pa.array([0] * len(values), pa.int32()),
            }
            path = table / f"topic={topic}" / f"f{commit}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), path, compression="none", write_page_checksum=True)
            ends = {
                "physicalOffset": (numbers[0], numbers[-1]),
                "offset": (numbers[0] // 2, numbers[-1] // 2),
            }
            stats = {
                "numRecords": len(values),
                "minValues": {name: low for name, (low, _) in ends.items()},
                "maxValues": {name: high for name, (_, high) in ends.items()},
            }
            add = {"path": f"topic={topic}/f{commit}.parquet", "size": path.stat().st_size}
            adds.append({"add": add | {"partitionValues": {"topic": topic}, "stats": json.dumps(stats)}})
        end = (commit + 1) * COUNT
        transaction = {"txn": {"appId": application("b"), "version": end}}
        (table / "_delta_log").mkdir(exist_ok=True)
        lines = "".join(json.dumps(action) + "\n" for action in (transaction, *adds))
        (table / "_delta_log" / f"{commit:020d}.json").write_text(lines)
        queues = {topic: {"0": [commit * COUNT // 2, end // 2]} for topic in "TU"}
        Manifest("b", commit * COUNT, end, COUNT, 0, 0, 0, queues).save(str(table))
    return table


def swapped(one: str, other: str) -> Callable[[str, bytes], bytes]:
    def lie(path: str, data: bytes) -> bytes:
        for here, there in ((one, other), (other, one)):
            if path.endswith(here):
                return Path(path.removesuffix(here) + there).read_bytes()
        return data

    return lie


def cut(name: str, part: float) -> Callable[[str, bytes], bytes]:
    return lambda path, data: data[: int(len(data) * part)] if path.endswith(name) else data


def first_lines(path: str, data: bytes) -> bytes:
    """The file ends behind a line, and is valid JSON."""
    return b"".join(data.splitlines(keepends=True)[:2]) if path.endswith("1.json") else data


def flipped(path: str, data: bytes) -> bytes:
    return data.replace(b"T000010", b"T000011") if path.endswith("T/f0.parquet") else data


LIES: dict[str, Callable[[str, bytes], bytes]] = {
    "two files of a topic": swapped("topic=T/f0.parquet", "topic=T/f1.parquet"),
    "files of two topics": swapped("topic=T/f0.parquet", "topic=U/f0.parquet"),
    "a short file": cut("f1.parquet", 0.7),
    "a short commit": first_lines,
    "a short manifest": cut("300.json", 0.5),
    "a changed byte": flipped,
}


def read_by_tier(url: str, cache: Path) -> list[bytes]:
    cache.mkdir()
    hostile = ArchiveFetcher(url, "b", cache, 1 << 20, bytes(8))
    hostile.refresh({})
    found, offset = list[bytes](), 0
    while (answer := hostile.fetch("T", 0, offset))["chunk"] is not None:
        chunk = ArchiveChunk(cache, answer["chunk"])
        result, _ = chunk.get(0, answer["first"], 0, COUNT, COUNT, 1 << 20, COUNT, None)
        found += [each.body for buffer in result.buffers for each in decode_records(bytes(buffer))]
        offset = result.next_offset
    return found


def read_by_source(url: str, cache: Path) -> list[bytes]:
    wanted = [QueueRange(MessageQueue("T", "b", 0), 0, COUNT)]
    tasks = plan_archive(Archive(url), wanted, ("value",))
    return [value for task in tasks for batch in read_archive(task) for value in batch.column(0).to_pylist()]


READERS = [read_by_tier, read_by_source]
EXPECTED = [f"T{number:06d}".encode() * 20 for number in range(0, 2 * COUNT, 2)]


@pytest.mark.parametrize("read", READERS)
def test_good_storage_is_read(written: Path, tmp_path: Path, spell: type[Spell], read: Any) -> None:
    assert read(f"lying://{written}", tmp_path / "cache") == EXPECTED


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("lie", LIES)
def test_wrong_bytes_of_storage_are_an_error(
    written: Path, tmp_path: Path, spell: type[Spell], read: Any, lie: str
) -> None:
    spell.lie = staticmethod(LIES[lie])
    with pytest.raises((MQError, OSError)):
        read(f"lying://{written}", tmp_path / "cache")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "name", ["_delta_log/00000000000000000001.json", "_delta_log/", "topic=T/f1.parquet"]
)
def test_what_storage_does_not_list_yet_or_fails_to_read_is_no_gap(
    written: Path, tmp_path: Path, spell: type[Spell], read: Any, name: str
) -> None:
    spell.hidden = staticmethod(lambda path: name in path)
    spell.failing = staticmethod(lambda path: name in path and name.endswith("parquet"))
    with pytest.raises((MQError, OSError)):
        read(f"lying://{written}", tmp_path / "cache")


def test_lack_of_memory_is_no_damage(written: Path) -> None:
    with (
        pytest.raises(OSError, match="realloc") as caught,
        opened_parquet(delta_table(str(written)).files[0]),
    ):
        raise pa.ArrowMemoryError("realloc of size 64 failed")
    assert caught.value.errno == errno.ENOMEM


def test_an_older_list_than_the_last_one_changes_nothing(
    written: Path, tmp_path: Path, spell: type[Spell]
) -> None:
    hostile = fetcher(tmp_path, f"lying://{written}")
    known = list(hostile.catalog.bounds())
    for name in ("_mqspark/b/00000000000000000300.json", "_delta_log/00000000000000000001.json"):
        spell.hidden = staticmethod(lambda path, name=name: path.endswith(name))
        with pytest.raises(MQError, match="which was there"):
            hostile.refresh({})
    assert list(hostile.catalog.bounds()) == known
