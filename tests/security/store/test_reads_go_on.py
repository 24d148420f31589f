"""Threat: a disk that turns read-only, an address space that is used up, a disk that fails to read. What was
acknowledged is still served as long as it can be read at all, and /health says what works and what does not."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import textwrap
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from mqspark.client.remoting.blockingconnection import BlockingConnection
from mqspark.errors import BrokerError, StoreReadOnly
from mqspark.message import Message, MessageQueue, java_hash
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import pull_header
from mqspark.record.record import decode_records
from mqspark.store.compaction.compactedqueues import KEPT_DTYPE, Current, GenerationWriter, publish
from mqspark.store.disk.files import OsFiles, StrPath
from mqspark.store.store import MessageStore
from mqspark.testing import Broker, Clients
from tests.support.draws import some
from tests.support.processes import run_python
from tests.support.store_tools import checkpoint, crash, drain, flush, opened, put, query
from tests.support.storefiles import log_bytes


class TurnedReadOnly(OsFiles):
    """A disk that from some moment on answers as a file system that the kernel has remounted read-only."""

    def __init__(self) -> None:
        self.is_turned = False
        self.opened_for_writing = 0

    def _refuse(self, path: object) -> None:
        if self.is_turned:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def open(self, path: StrPath, *, create: bool = False) -> int:
        self.opened_for_writing += 1
        self._refuse(path)
        return super().open(path, create=create)

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._refuse(fd)
        super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._refuse(fd)
        super().sync(fd)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._refuse(fd)
        super().allocate(fd, offset, length)

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._refuse(source)
        super().rename(source, target)

    def remove(self, path: StrPath) -> None:
        self._refuse(path)
        super().remove(path)

    def is_read_only(self, path: StrPath) -> bool:
        return self.is_turned


def _filled(store: MessageStore, count: int = 400) -> list[bytes]:
    bodies = []
    for number in range(count):
        bodies.append(b"body %d " % number + bytes([65 + number % 26]) * (number * 37 % 300))
        tags = b"TAGS\x01t%d\x02" % (number % 3)
        put(store, "T", number % 2, bodies[-1], tags + b"KEYS\x01k%d\x02" % number)
        if number % 5 == 0:
            flush(store)
    flush(store)
    checkpoint(store)
    return bodies


def _compacted(root: Path, records: list[bytes]) -> None:
    """The first records of queue 0 are a generation."""
    directory = root / "mqspark.compacted" / "T" / "0"
    writer = GenerationWriter(directory, "next")
    for offset, record in enumerate(records):
        writer.append(record, offset, 0)
    writer.finish()
    os.replace(writer.log_path, directory / "1.log")
    os.replace(writer.queue_path, directory / "1.queue")
    publish(directory, Current(1, len(records), writer.messages, writer.size_bytes))
    assert KEPT_DTYPE.itemsize == 28


def _unmap_all(store: MessageStore) -> None:
    for _ in range(4):
        store.log.drop_idle()
        for _ in store.table.drop_idle():
            continue
    store.index.maps.clear()
    assert store.log.mapped_segments == 0
    assert len(store.table.maps) == 0


@pytest.mark.parametrize("sync", [False, True])
def test_a_disk_that_turned_read_only_is_read_on(tmp_path: Path, sync: bool) -> None:
    """Segments, queues, index files and compacted files, of which nothing is mapped yet."""
    files = TurnedReadOnly()
    store = opened(tmp_path, None, files, sync=sync)
    bodies = _filled(store)
    assert len(store.log.segments) > 5
    _unmap_all(store)
    files.is_turned, files.opened_for_writing = True, 0
    with contextlib.suppress(StoreReadOnly):
        put(store, "T", 0, b"not any more")
        flush(store)
    assert store.condition.read_only is not None
    assert "Read-only file system" in store.condition.read_only

    for queue_id in (0, 1):
        assert [m.body for m in drain(store, "T", queue_id)] == bodies[queue_id::2]
    for number in (0, 1, 150, 399):
        (record,) = query(store, "T", f"k{number}", 32, 0, 1 << 60)
        (message,) = decode_records(record, decompress=False)
        assert message.body == bodies[number]
    assert store.offsets.offset_by_timestamp("T", 0, 0, False) == 0
    assert store.reads.earliest_store_timestamp() > 0
    assert store.reads.log_from(0, 1 << 16)
    some = [bytes(r) for r in itertools.islice(_records(store, "T", 0), 20)]
    _compacted(tmp_path, some)
    store.reads.compacted.look_again()
    assert [m.body for m in drain(store, "T", 0)] == bodies[0::2]
    assert store.reads.compacted.begins("T", 0)
    assert files.opened_for_writing <= 1, "readers open nothing for writing"
    assert store.status.read_problem is None
    store.abandon()


def _records(store: MessageStore, topic: str, queue_id: int) -> Iterator[memoryview]:
    for offset in itertools.count():
        result = store.reads.get(topic, queue_id, offset, 1, 1)
        if not result.buffers:
            return
        yield result.buffers[0]


def test_an_idle_store_notices_a_disk_that_turned_read_only(tmp_path: Path) -> None:
    files = TurnedReadOnly()
    store = opened(tmp_path, None, files)
    _filled(store, 10)
    files.is_turned = True
    assert store.maintenance() == []
    assert store.condition.read_only is not None
    assert "Read-only file system" in store.condition.read_only
    with pytest.raises(StoreReadOnly):
        put(store, "T", 0, b"too late")
    assert len(drain(store, "T", 0)) == 5
    store.abandon()


def _wait(what: Callable[[], Any], wanted: Any) -> None:
    deadline = time.monotonic() + 20
    while what() != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    assert what() == wanted


def test_a_broker_on_a_disk_that_turned_read_only_says_so_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(store=tmp_path, http=True).start()
    with Clients(broker.namesrv) as clients, httpx.Client(base_url=broker.http_url or "", timeout=60) as http:
        producer = clients.producer()
        for number in range(20):
            producer.send(Message("T", b"%d" % number))
        assert http.get("/health/ready").status_code == 200
        store = broker.apps[0].store
        assert store is not None
        broker.call(lambda: _unmap_all(store))
        refused = TurnedReadOnly()
        refused.is_turned = True
        monkeypatch.setattr(OsFiles, "is_read_only", lambda self, path: True)
        monkeypatch.setattr(OsFiles, "open", lambda self, path, create=False: refused.open(path))
        _wait(lambda: http.get("/health/ready").status_code, 503)
        assert "Read-only file system" in http.get("/health/ready").json()["store"]["readOnly"]
        assert sorted(_pulled(broker, "T")) == sorted(b"%d" % number for number in range(20))
        monkeypatch.undo()
    broker.kill()
    broker.stop()


def _pulled(broker: Broker, topic: str) -> list[bytes]:
    """By plain pulls of every queue."""
    store = broker.apps[0].store
    assert store is not None
    bodies = []
    with contextlib.closing(BlockingConnection(broker.address)) as connection:
        for name, queue_id in [key for key in store.table.queues if key[0] == topic]:
            offset, end = 0, broker.call(lambda q=queue_id: store.offsets.max_offset(topic, q))
            while offset < end:
                queue = MessageQueue(name, "", queue_id)
                header = pull_header("CID_ONS-HTTP-PROXY", queue, offset, max_messages=32)
                answer = connection.wait(connection.send(RequestCode.PULL_MESSAGE, header))
                if answer.code:
                    raise BrokerError(answer.code, answer.remark or "")
                found = decode_records(bytes(answer.body))
                bodies += [message.body for message in found]
                offset += len(found)
    return bodies


def test_a_disk_that_does_not_read_is_in_the_health_until_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(store=tmp_path, http=True) as broker, Clients(broker.namesrv) as clients:
        producer = clients.producer()
        for number in range(8):
            producer.send(Message("T", b"%d" % number))
        store = broker.apps[0].store
        assert store is not None
        whole = OsFiles.open_read

        def failing(self: OsFiles, path: StrPath) -> int:
            if "commitlog" in str(path):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return whole(self, path)

        with httpx.Client(base_url=broker.http_url or "", timeout=60) as http:
            assert http.get("/health/ready").json()["store"]["readProblem"] is None
            broker.call(lambda: _unmap_all(store))
            monkeypatch.setattr(OsFiles, "open_read", failing)
            with pytest.raises(BrokerError, match="cannot be read"):
                _pulled(broker, "T")
            answer = http.get("/health/ready")
            assert answer.status_code == 503
            assert "Input/output error" in answer.json()["store"]["readProblem"]
            assert "storage_unreadable{" in http.get("/metrics").text
            monkeypatch.undo()
            _wait(lambda: http.get("/health/ready").status_code, 200)  # nobody reads meanwhile
            assert sorted(_pulled(broker, "T")) == [b"%d" % number for number in range(8)]


def test_parked_pulls_are_answered_when_the_disk_does_not_read(tmp_path: Path) -> None:
    from tests.unit.broker_kit import Bench, send_ext

    bench = Bench(tmp_path)
    peer = bench.peer()
    peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), b"first")
    bench.flush()
    first, second = bench.peer(), bench.peer()
    for each in (first, second):
        each.give_pull(offset=1, sysFlag="6", suspendTimeoutMillis="20000")
    assert not first.heard()
    assert not second.heard()
    store = bench.store
    fetch = store.reads.fetcher.get

    def failing(*args: Any, **more: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    store.reads.fetcher.get = failing  # type: ignore[method-assign]
    peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), b"second")
    bench.flush()
    for each in (first, second):
        (answer,) = each.heard()
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "cannot be read" in (answer.remark or "")
    store.reads.fetcher.get = fetch  # type: ignore[method-assign]
    store.maintenance()
    assert store.status.read_problem is None


# --- what cannot be mapped is copied --------------------------------------------------------------------------


def _asked(store: MessageStore) -> Iterator[object]:
    codes = frozenset({java_hash("t1")})
    for queue_id, offset, count, size, tags, bulk in itertools.product(
        (0, 1), (0, 7, 150, 199, 200), (1, 32, 100, 5000), (1, 3000, 1 << 20), (None, codes), (False, True)
    ):
        result = store.reads.get("T", queue_id, offset, count, size, tags, bulk=bulk)
        yield result.status, result.next_offset, result.count, b"".join(result.buffers)
    for position in range(0, store.log.position + 10, 7):
        record = store.reads.record_at(position)
        yield bytes(record) if record is not None else None
        parts = store.reads.parts_at(position)
        yield (bytes(parts.body), parts.queue_offset) if parts is not None else None
    yield store.reads.earliest_store_timestamp(), store.status.damaged_reads, store.status.damaged_offsets


def _damage(root: Path) -> None:
    """In a body, a size and a magic."""
    log = log_bytes(root)
    for number, shift, byte in ((60, 0, b"X"), (133, -88, b"\x7f"), (301, -83, b"\0")):
        at = log.index(b"body %d " % number) + shift
        start = at - at % 4096
        with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
            file.seek(at - start)
            file.write(byte)


@pytest.mark.parametrize("restarted", some(["no", "closed", "killed"], 1))
@pytest.mark.parametrize(
    "damaged", [True, pytest.param(False, marks=pytest.mark.slow("with damage is the fast twin"))]
)
def test_copies_are_what_maps_are(tmp_path: Path, restarted: str, damaged: bool) -> None:
    """Recovery, every kind of read, and damage: the same with and without a single map."""
    told = []
    for name, limit in (("mapped", 0), ("copied", 1)):
        root = tmp_path / name
        store = opened(root, max_mapped_bytes=limit)
        _filled(store)
        if restarted == "closed":
            store.close()
        elif restarted == "killed":
            crash(store)
            (root / "checkpoint").unlink()
            (root / "mqspark.checkpoint").unlink(missing_ok=True)
        if damaged:
            _damage(root)
        if restarted != "no":
            store = opened(root, max_mapped_bytes=limit)
        told.append(list(_asked(store)))
        if limit:
            assert store.log.mapped_segments == 0
            assert len(store.table.maps) == 0
        else:
            assert store.log.mapped_segments > 0
        store.abandon()
    assert told[0] == told[1]


def test_the_budget_bounds_what_is_mapped(tmp_path: Path) -> None:
    store = opened(tmp_path, max_mapped_bytes=6 * 4096)
    bodies = _filled(store)
    assert len(store.log.segments) > 10
    for queue_id in (0, 1):
        assert [m.body for m in drain(store, "T", queue_id)] == bodies[queue_id::2]
        assert store.log.mapped_segments <= 3
    assert store.log.mapped_segments > 0
    store.close()
    assert store.log.mapped_segments == 0


def test_an_index_is_searched_without_a_map(tmp_path: Path) -> None:
    store = opened(tmp_path)
    bodies = _filled(store)
    assert len(store.data.index.index_files) > 1
    store.close()
    assert f"{tmp_path}/" not in Path("/proc/self/maps").read_text(), "a closed store has maps"
    store = opened(tmp_path, max_mapped_bytes=1)
    for number in range(0, 400, 7):
        (record,) = query(store, "T", f"k{number}", 32, 0, 1 << 60)
        assert decode_records(record, decompress=False)[0].body == bodies[number]
    assert f"{tmp_path}/index/" not in Path("/proc/self/maps").read_text()


def test_a_queue_entry_that_lies_of_its_size_costs_no_memory(tmp_path: Path) -> None:
    store = opened(tmp_path, max_mapped_bytes=1, mapped_file_size_commit_log=256 << 20)
    for number in range(3):
        put(store, "T", 0, b"%d" % number)
    flush(store)
    with (tmp_path / "consumequeue/T/0" / f"{0:020d}").open("r+b") as file:
        file.seek(20 + 8)
        file.write((200 << 20).to_bytes(4, "big"))
    tracemalloc.start()
    try:
        result = store.reads.get("T", 0, 1, 32, 1 << 20)
        assert (result.count, result.next_offset) == (2, 3)  # the pull has corrected the entry
        assert [m.body for m in drain(store, "T", 0)] == [b"0", b"1", b"2"]
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


_LIMITED = """
    import json, resource, sys
    from pathlib import Path
    import httpx
    from mqspark.message import Message
    from mqspark.testing import Broker, Clients
    from tests.security.store.test_reads_go_on import _pulled

    used = lambda: int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    broker = Broker(store=sys.argv[1], http=True).start()
    with Clients(broker.namesrv) as clients, httpx.Client(base_url=broker.http_url, timeout=60) as http:
        producer = clients.producer()
        producer.send(Message("T", b"first"))
        store = broker.apps[0].store
        broker.call(lambda: [store.log.drop_idle(), store.log.drop_idle()])
        resource.setrlimit(resource.RLIMIT_AS, (used() + (512 << 20), resource.RLIM_INFINITY))
        for number in range(200):
            producer.send(Message("T", b"%d" % number + bytes(1000)))
        found = {body.rstrip(b"\\0").decode() for body in _pulled(broker, "T")}
        told = {
            "segment": store.log.segment_bytes,
            "mapped": store.log.mapped_segments,
            "found": len(found),
            "health": http.get("/health/ready").status_code,
        }
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    broker.stop()
    print(json.dumps(told))
"""


@pytest.mark.slow("a process with a limit; copies beside maps are the fast twin")
def test_a_broker_with_little_address_space_serves_what_it_takes(tmp_path: Path) -> None:
    """512 MiB are left when segments have 1 GiB: not one can be mapped."""
    root = Path(__file__).parents[3]
    ran = run_python(
        textwrap.dedent(_LIMITED), str(tmp_path), cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told == {"segment": 1 << 30, "mapped": 0, "found": 201, "health": 200}


def test_a_start_with_little_address_space_recovers(tmp_path: Path) -> None:
    """After a kill, with a log that cannot be mapped."""
    script = """
        import resource, sys
        from pathlib import Path
        from tests.support.store_tools import drain, make_store
        store = make_store(Path(sys.argv[1]), mapped_file_size_commit_log=1 << 30)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), resource.RLIM_INFINITY))
        store.open()
        print(len(drain(store, "T", 0)), store.log.mapped_segments)
    """
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 30)
    for number in range(100):
        put(store, "T", 0, b"%d" % number)
    flush(store)
    crash(store)
    root = Path(__file__).parents[3]
    ran = run_python(textwrap.dedent(script), str(tmp_path), cwd=root)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.split() == ["100", "0"]


def test_no_map_is_touched_beyond_a_file_that_was_cut_before(tmp_path: Path) -> None:
    """A segment that another program made shorter is not mapped as long as it was: what is gone is not found."""
    store = opened(tmp_path)
    bodies = _filled(store)
    _unmap_all(store)
    os.truncate(store.log.segments[3].path, 1000)
    found = [m.body for m in drain(store, "T", 0)]
    assert 0 < len(found) < 200
    assert set(found) <= set(bodies[0::2])
    assert np.isin(bodies[0:40:2], found).all()
    store.abandon()
