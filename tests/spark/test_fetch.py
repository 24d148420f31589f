"""What a Spark worker does with a task, without Spark: in place, over TCP, and when either goes wrong."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqspark.arrow.cluster.cluster_queues import BrokerPlace, ClusterQueues, DataLoss
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.cluster.readtasks import ReadTask
from mqspark.arrow.reading import localstore, openplaces, rangepulls
from mqspark.arrow.reading import range_fetch as fetch
from mqspark.arrow.reading.range_fetch import read_task
from mqspark.errors import ConnectionLost, MQError
from mqspark.message import Message, MessageQueue
from mqspark.store.disk.trusted import prove
from pyspark_pymq.options import ReadOptions
from tests.support.dev import DevCluster
from tests.support.processes import free_port, run_python
from tests.support.storefiles import segments_of

COLUMNS = ("partition", "offset", "value", "key", "tags", "msgId", "timestamp")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A topic ``T`` with 3,000 numbers, and a large-bodied one, in segments of 4 MiB."""
    root = tmp_path_factory.mktemp("fetch") / "store"
    with DevCluster(root, "mappedFileSizeCommitLog=4194304", "flushDiskType=ASYNC_FLUSH") as running:
        running.create_topic("T")
        running.send_numbers("T", range(3000))
        running.create_topic("Large", 1)
        for number in range(30):
            running.send("Large", 0, [Message.of("Large", bytes([number]) * 300_000, keys=f"k{number}")])
        yield running


def task(cluster: DevCluster, topic: str = "T", *, local: bool = True, **changes: object) -> ReadTask:
    options = ReadOptions.parse({"nameserver": cluster.nameserver, "topic": topic}, streaming=False)
    driver = ClusterQueues(options)
    queues = driver.queues()
    latest = driver.latest(queues)
    place = driver.place(cluster.address) if local else BrokerPlace(cluster.address)
    driver.client.close()
    made = ReadTask(
        ranges=tuple(QueueRange(queue, 0, latest[queue]) for queue in queues),
        places={"dev": place},
        columns=COLUMNS,
        tags=(),
        group="readers",
        fail_on_data_loss=True,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def table(work: ReadTask) -> pa.Table:
    return pa.Table.from_batches(
        read_task(work), fetch.Decoder(COLUMNS, topic="", broker="", queue_id=0).schema
    )


def proved(place: BrokerPlace, root: Path) -> BrokerPlace:
    """The same for a copy of the store."""
    nonce = (root / "mqspark.nonce").read_text()
    log = str(root / "commitlog")
    proof = prove(nonce, place.challenge, str(root), log)
    return replace(place, store_path=str(root), commit_log_path=log, proof=proof)


@pytest.fixture
def no_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Iterator[pa.RecordBatch]:
        raise AssertionError("not read in place")

    monkeypatch.setattr(fetch, "pulled_batches", refuse)


@pytest.fixture
def no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localstore.LocalStore, "read", lambda *_: iter(()))


def test_in_place(store: DevCluster, no_tcp: None) -> None:
    rows = table(task(store))
    assert sorted(int(value.as_py()) for value in rows["value"]) == list(range(3000))
    large = table(task(store, "Large"))
    assert [value.as_py()[:1] for value in large["value"]] == [bytes([n]) for n in range(30)]


def test_same_rows_over_tcp(store: DevCluster) -> None:
    for topic in ("T", "Large"):
        assert table(task(store, topic, local=False)) == table(task(store, topic))


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("tags", [(), ("odd",), ("even", "none"), ("none",)])
def test_parts_of_a_queue(store: DevCluster, local: bool, tags: tuple[str, ...]) -> None:
    whole = task(store, local=local, tags=tags)
    queue = whole.ranges[1].queue
    for start, end in ((0, 1), (5, 5), (700, 750), (31, 65), (1, 750)):
        rows = table(replace(whole, ranges=(QueueRange(queue, start, end),)))
        numbers = [1 + 4 * offset for offset in range(start, end)]  # all of queue 1 are odd
        expected = numbers if not tags or "odd" in tags else []
        assert [int(value.as_py()) for value in rows["value"]] == expected
        assert rows["offset"].to_pylist() == [(n - 1) // 4 for n in expected]


def test_batches_are_of_good_size(store: DevCluster) -> None:
    for local in (True, False):
        (batch,) = read_task(task(store, local=local))  # 3,000 small rows of four queues: one batch
        assert batch.num_rows == 3000
        sizes = [batch.nbytes for batch in read_task(task(store, "Large", local=local))]
        assert max(sizes) < 4 << 20
        assert len(sizes) < 10


def test_only_the_brokers_own_directory_is_trusted(store: DevCluster, no_maps: None) -> None:
    """With another proof, or none, or a directory that is not there, TCP serves."""
    place = task(store).places["dev"]
    for changed in (
        replace(place, proof="0" * 64),
        replace(place, proof=""),
        replace(place, challenge="0" * 32),
        replace(place, store_path="/nonexistent"),
        replace(place, store_path=""),
    ):
        assert openplaces.KEPT.store(changed) is None
        assert table(task(store, places={"dev": changed})).num_rows == 3000


def test_pulls_go_on_at_the_new_master(store: DevCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The task was planned before the master changed: nobody listens at its address any more."""
    gone = BrokerPlace(f"127.0.0.1:{free_port()}")
    work = task(store, places={"dev": gone}, nameserver=store.nameserver)
    assert table(work).num_rows == 3000
    assert table(work).num_rows == 3000
    away, back = (record.getMessage() for record in caplog.records[:2])
    assert "pulling again" in away
    assert back == "broker dev is pulled from again"
    with pytest.raises(ConnectionLost):
        table(replace(work, nameserver="", retry_timeout_ms=300))


def test_pulls_leave_a_master_that_is_silent(store: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was frozen after the task was planned; nobody waits until the pull has timed out."""
    monkeypatch.setattr("mqspark.client.remoting.blockingconnection.SILENT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        place = BrokerPlace(f"127.0.0.1:{frozen.getsockname()[1]}")
        began = time.monotonic()
        assert table(task(store, places={"dev": place}, nameserver=store.nameserver)).num_rows == 3000
        assert time.monotonic() - began < 9


def test_a_segment_that_is_gone_is_pulled(store: DevCluster, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store.store, copy)
    segments = segments_of(copy)
    assert len(segments) > 2
    segments[1].unlink()
    place = proved(task(store).places["dev"], copy)
    assert table(task(store, "Large", places={"dev": place})) == table(task(store, "Large"))


@pytest.mark.slow("a process with a limit; tests/security/store/test_reads_go_on.py is the fast twin")
def test_no_address_space_for_a_map(tmp_path: Path) -> None:
    """Spark's memory settings are address-space limits: a 1 GiB segment does not fit, and is copied from."""
    program = """
import json, resource, sys
from pathlib import Path
from typing import Any
from mqspark.arrow.reading import openplaces
from pyspark_pymq.reading import batch as reader
from pyspark_pymq.options import ReadOptions
import pyarrow.compute
options = ReadOptions.parse(json.loads(sys.argv[1]), streaming=False)
partitions = reader.BatchReader(options, ("value",)).partitions()
used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), used + (400 << 20)))
rows = sum(batch.num_rows for part in partitions for batch in reader.read_partition(part))
print(json.dumps([rows, [
    [segment.map for segment in store._reader._segments.values()] for store in openplaces.KEPT.stores.values()
]]))
"""
    with DevCluster(
        tmp_path / "store", "flushDiskType=ASYNC_FLUSH", "mappedFileSizeCommitLog=1073741824"
    ) as own:
        own.create_topic("T")
        own.send_numbers("T", range(500))
        options = json.dumps({"nameserver": own.nameserver, "topic": "T"})
        done = run_python(program, options)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [500, [[None]]]


def test_a_connection_that_went_stale_and_one_that_breaks(tmp_path: Path) -> None:
    with DevCluster(tmp_path / "store", "flushDiskType=ASYNC_FLUSH") as own:
        own.create_topic("Large", 1)
        for number in range(40):
            own.send("Large", 0, [Message.of("Large", bytes([number]) * 300_000)])
        work = task(own, "Large", local=False)
        assert table(work).num_rows == 40
        own.stop(signal.SIGKILL)
        own.start()
        batches = read_task(work)  # the cached connection is dead
        seen = [next(batches)]
        own.stop(signal.SIGKILL)
        own.start()
        seen += list(batches)
        values = [value.as_py()[0] for batch in seen for value in batch.column("value")]
        assert values == list(range(40))


def test_a_restarted_broker_is_mapped_anew(tmp_path: Path) -> None:
    with DevCluster(tmp_path / "store") as own:
        own.create_topic("T")
        own.send_numbers("T", range(10))
        first = task(own)
        assert table(first).num_rows == 10
        own.stop()
        own.start()
        second = task(own)
        assert table(second).num_rows == 10
        mine = [key for key in openplaces.KEPT.stores if key[1].store_path == str(own.store)]
        assert [key[2] for key in mine] == [(own.store / "mqspark.nonce").read_text()]
        assert table(first).num_rows == 10  # a task planned before the restart


def test_offsets_that_the_broker_does_not_have(store: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rangepulls, "_EMPTY_RETRIES", 1)
    beyond = QueueRange(MessageQueue("T", "dev", 0), 740, 800)
    for local in (True, False):
        with pytest.raises((DataLoss, MQError)):
            table(task(store, local=local, ranges=(beyond,)))
    far = QueueRange(MessageQueue("T", "dev", 0), 900, 950)
    with pytest.raises(DataLoss, match="offset 900 is gone"):
        table(task(store, ranges=(far,)))
    assert table(task(store, ranges=(far,), fail_on_data_loss=False)).num_rows == 0


def test_a_broker_with_small_pulls(tmp_path: Path) -> None:
    with DevCluster(
        tmp_path / "store", "maxTransferCountOnMessageInMemory=7", "flushDiskType=ASYNC_FLUSH"
    ) as own:
        own.create_topic("T", 1)
        own.send_numbers("T", range(1000), queues=1)
        rows = table(task(own, local=False))
        assert rows["offset"].to_pylist() == list(range(1000))
        assert table(task(own, local=False, tags=("odd",))).num_rows == 500


def test_bulk_pulls_of_messages_of_all_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pulls, whatever the bytes allow; as many as anybody's on a broker that knows nothing of bulk."""
    with DevCluster(tmp_path / "store", "flushDiskType=ASYNC_FLUSH") as own:
        own.create_topic("T", 1)
        sizes = [10 + n * 7919 % (3000 if n < 3000 else 60) for n in range(9000)]
        for first in range(0, len(sizes), 500):
            messages = [Message.of("T", bytes([n % 251]) * sizes[n]) for n in range(first, first + 500)]
            own.send("T", 0, messages)
        pulls = []
        waited = openplaces.BlockingConnection.wait

        def wait(self: openplaces.BlockingConnection, *arguments: Any, **more: Any) -> Any:
            answer = waited(self, *arguments)
            pulls.append(len(answer.body))
            return answer

        monkeypatch.setattr(openplaces.BlockingConnection, "wait", wait)
        in_bulk = table(task(own, local=False))
        assert [len(value.as_py()) for value in in_bulk["value"]] == sizes
        assert in_bulk == table(task(own))
        assert len(pulls) < 40
        assert max(pulls) > 1 << 20
        pulls.clear()
        header = rangepulls.pull_header
        monkeypatch.setattr(rangepulls, "pull_header", lambda *a, **k: header(*a, **{**k, "bulk": False}))
        assert table(task(own, local=False)) == in_bulk
        assert max(pulls) <= 256 << 10


@pytest.mark.parametrize("tags", [(), ("odd",)])
def test_a_small_task_decodes_its_queues_at_once(
    store: DevCluster, no_tcp: None, monkeypatch: pytest.MonkeyPatch, tags: tuple[str, ...]
) -> None:
    work = task(store, tags=tags)
    work = replace(
        work, ranges=tuple(replace(each, start=each.start + 7, end=each.end - 9) for each in work.ranges)
    )
    calls = []
    decode = fetch.Decoder.batches

    def counted(self: fetch.Decoder, *arguments: Any) -> Iterator[pa.RecordBatch]:
        calls.append(len(arguments[1]))
        return decode(self, *arguments)

    monkeypatch.setattr(fetch.Decoder, "batches", counted)
    together = table(work).to_pylist()
    assert len(calls) == 1
    monkeypatch.setattr(fetch, "_TOGETHER_ROWS", 0)
    one_by_one = table(work).to_pylist()
    assert len(calls) >= 3
    assert len(together) == sum(each.rows for each in work.ranges) // (2 if tags else 1)

    def of(rows: list[dict[str, Any]], queue: int) -> list[dict[str, Any]]:
        return [row for row in rows if row["partition"] == queue]

    for queue in range(4):
        assert of(together, queue) == of(one_by_one, queue)
