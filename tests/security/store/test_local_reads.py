"""Threat: a broker, or who pretends to be one, that makes readers on its host open files; somebody who cuts a file that
a reader looks at. Readers open only what their operator allows and a broker proves to be its own; a cut file costs a
read, never the process."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from mqspark.client.blocking import BlockingClient
from mqspark.errors import StoreCorrupt
from mqspark.message import Message
from mqspark.store.disk.trusted import MAX_CHALLENGE, Trust, Untrusted, prove
from mqspark.store.tools.reader import StoreReader
from mqspark.testing import Broker, Clients
from tests.support.store_tools import flush, opened, put
from tests.support.waiting import eventually

pytest.importorskip("pyspark", reason="the reader is Spark's")

from mqspark.arrow.cluster.cluster_queues import BrokerPlace, ClusterQueues
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.cluster.readtasks import ReadTask
from mqspark.arrow.reading import localstore, openplaces, rangepulls
from mqspark.arrow.reading import range_fetch as fetch
from mqspark.arrow.reading.openplaces import ALLOWED_VARIABLE
from mqspark.arrow.reading.range_fetch import read_task
from pyspark_pymq.options import ReadOptions
from tests.support.processes import run_python
from tests.support.storefiles import segments_of

ROWS = 400
STRANGER = 4242


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A topic ``T`` of 400 messages in 4 queues, in segments of 64 KiB."""
    root = tmp_path_factory.mktemp("local") / "store"
    settings = {"mappedFileSizeCommitLog": 65536, "flushDiskType": "ASYNC_FLUSH"}
    with Broker(store=root, http=True, settings=settings) as running:
        with Clients(running.namesrv) as clients:
            producer = clients.producer()
            for number in range(ROWS):
                producer.send(Message("T", b"%d " % number + bytes(700)))
        yield running
        for connection in openplaces.KEPT.connections.values():
            connection.close()
        openplaces.KEPT.connections.clear()


@pytest.fixture(autouse=True)
def no_stores() -> Iterator[None]:
    openplaces.KEPT.stores.clear()
    yield
    openplaces.KEPT.stores.clear()


@pytest.fixture
def task(broker: Broker) -> ReadTask:
    options = ReadOptions.parse({"nameserver": broker.namesrv, "topic": "T"}, streaming=False)
    driver = ClusterQueues(options)
    queues = driver.queues()
    latest = driver.latest(queues)
    (name,) = {queue.broker_name for queue in queues}
    made = ReadTask(
        ranges=tuple(QueueRange(queue, 0, latest[queue]) for queue in queues),
        places={name: driver.place(broker.address)},
        columns=("value",),
        tags=(),
        group="readers",
        fail_on_data_loss=True,
    )
    driver.client.close()
    return made


def place_of(task: ReadTask) -> BrokerPlace:
    (place,) = task.places.values()
    return place


def at(task: ReadTask, place: BrokerPlace) -> ReadTask:
    return replace(task, places=dict.fromkeys(task.places, place))


def numbers(task: ReadTask) -> list[int]:
    values = [value.as_py() for batch in read_task(task) for value in batch.column("value")]
    assert all(value.endswith(bytes(700)) for value in values)
    return sorted(int(value.split(b" ")[0]) for value in values)


def copied(task: ReadTask, root: Path) -> BrokerPlace:
    """The store under another path, with the broker's proof for it."""
    place = place_of(task)
    shutil.copytree(place.store_path, root, ignore=shutil.ignore_patterns("index", "*.new"))
    log = str(root / "commitlog")
    proof = prove((root / "mqspark.nonce").read_text(), place.challenge, str(root), log)
    return replace(place, store_path=str(root), commit_log_path=log, proof=proof)


@pytest.fixture
def tcp(monkeypatch: pytest.MonkeyPatch) -> list[QueueRange]:
    """What was pulled."""
    pulled: list[QueueRange] = []
    whole = rangepulls.pulled_batches

    def noted(
        task: ReadTask,
        address: str,
        wanted: QueueRange,
        decoder: fetch.Decoder,
        opened: openplaces.OpenPlaces,
    ) -> object:
        pulled.append(wanted)
        return whole(task, address, wanted, decoder, opened)

    monkeypatch.setattr(fetch, "pulled_batches", noted)
    return pulled


# --- the secret ------------------------------------------------------------------------------------------------


def test_the_secret_is_told_to_nobody(broker: Broker) -> None:
    path = broker.store_path / "mqspark.nonce"
    secret = path.read_text()
    assert len(secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    client = BlockingClient(broker.namesrv)
    told = [client.runtime_info(broker.address), client.runtime_info(broker.address, challenge="x" * 32)]
    assert "mqsparkStoreProof" not in told[0]
    root, log = told[1]["mqsparkStorePath"], told[1]["mqsparkCommitLogPath"]
    assert told[1]["mqsparkStoreProof"] == prove(secret, "x" * 32, root, log)
    longer = client.runtime_info(broker.address, challenge="x" * (MAX_CHALLENGE + 1))
    assert "mqsparkStoreProof" not in longer
    client.close()
    with httpx.Client(base_url=broker.http_url or "", timeout=60) as http:
        pages = [
            http.get(page).text for page in ("/health/ready", "/metrics", "/api/v1/cluster", "/api/v1/topics")
        ]
    assert all(secret not in str(text) for text in (*told, longer, *pages))


def test_a_secret_that_a_crash_left_is_not_kept(tmp_path: Path) -> None:
    old = tmp_path / "mqspark.nonce"
    old.write_text("0" * 32)
    old.chmod(0o644)
    store = opened(tmp_path)
    assert old.read_text() == store.directory.nonce != "0" * 32
    assert stat.S_IMODE(old.stat().st_mode) == 0o600


# --- which directories ----------------------------------------------------------------------------------------


def test_a_proved_store_is_read_in_place(task: ReadTask, tcp: list[QueueRange]) -> None:
    assert numbers(task) == list(range(ROWS))
    assert not tcp


_opened: list[str] | None = None
_opener = 0
"""The thread whose files count; the broker opens its own in another one."""


def _note_opened(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None and threading.get_ident() == _opener:
        _opened.append(str(arguments[0]))


sys.addaudithook(_note_opened)


def test_a_hostile_broker_has_no_file_opened(task: ReadTask, tmp_path: Path, tcp: list[QueueRange]) -> None:
    """Whatever it says of paths: without the secret, with another store's proof, with another log than was proved."""
    global _opened, _opener
    victim = tmp_path / "victim"
    (victim / "commitlog").mkdir(parents=True)
    (victim / "commitlog" / f"{0:020d}").write_bytes(bytes(1 << 16))
    place = place_of(task)
    honest = copied(task, tmp_path / "copy")
    forged = [
        replace(place, store_path=str(victim), commit_log_path=str(victim / "commitlog")),
        replace(place, commit_log_path=str(victim / "commitlog")),
        replace(honest, commit_log_path=str(victim / "commitlog")),
        replace(honest, store_path=str(victim)),
        replace(place, store_path="/etc", commit_log_path="/etc"),
        replace(place, store_path="relative", commit_log_path="relative/commitlog"),
        replace(place, proof=prove("", place.challenge, place.store_path, place.commit_log_path)),
        replace(place, proof="é"),
        replace(place, store_path="/proc/self/fd", commit_log_path="/dev"),
    ]
    _opened, _opener = [], threading.get_ident()
    try:
        for each in forged:
            assert openplaces.KEPT.store(each) is None
        assert {Path(path).name for path in _opened} <= {"mqspark.nonce"}
    finally:
        _opened = None
    for each in forged[:3]:
        tcp.clear()
        assert numbers(at(task, each)) == list(range(ROWS))
        assert tcp


def test_another_users_store_is_not_read(
    task: ReadTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = copied(task, tmp_path / "copy")
    assert openplaces.KEPT.store(place) is not None
    openplaces.KEPT.stores.clear()
    _become_a_stranger(monkeypatch, Path(place.store_path))
    assert openplaces.KEPT.store(place) is None
    # An operator may allow it.
    assert openplaces.KEPT.store(replace(place, directories=(str(tmp_path),))) is not None
    assert openplaces.KEPT.store(replace(place, directories=(str(tmp_path / "co"),))) is None
    assert openplaces.KEPT.store(replace(place, directories=())) is None
    # The worker's host has the last word.
    monkeypatch.setenv(ALLOWED_VARIABLE, f"/nowhere:{tmp_path}")
    assert openplaces.KEPT.store(place) is not None
    monkeypatch.setenv(ALLOWED_VARIABLE, "")
    assert openplaces.KEPT.store(replace(place, directories=(str(tmp_path),))) is None


def _become_a_stranger(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Files of root may be read by everybody's readers, so root gives them away."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, STRANGER, STRANGER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


def test_a_strangers_file_in_an_own_directory_is_not_read(
    task: ReadTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tcp: list[QueueRange]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a single file away")
    place = copied(task, tmp_path / "copy")
    segments = segments_of(tmp_path / "copy")
    os.chown(segments[1], STRANGER, STRANGER)
    assert numbers(at(task, place)) == list(range(ROWS))
    assert tcp
    os.chown(tmp_path / "copy" / "mqspark.nonce", STRANGER, STRANGER)
    assert openplaces.KEPT.store(place) is None


def test_a_directory_that_anybody_may_write_is_not_read(task: ReadTask, tmp_path: Path) -> None:
    place = copied(task, tmp_path / "copy")
    (tmp_path / "copy" / "commitlog").chmod(0o777)
    assert openplaces.KEPT.store(place) is None


def _linked(path: Path, outside: Path) -> None:
    shutil.move(path, outside)
    path.symlink_to(outside)


def _fifo(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("commitlog/{segment}", _linked),
        ("commitlog/{segment}", _fifo),
        ("consumequeue/T/0", _linked),
        ("consumequeue/T/0/" + "0" * 20, _linked),
        ("consumequeue/T/0/" + "0" * 20, _fifo),
    ],
)
def test_links_lead_nowhere_and_pipes_are_not_waited_for(
    task: ReadTask, tmp_path: Path, where: str, change: Callable[[Path, Path], None], tcp: list[QueueRange]
) -> None:
    place = copied(task, tmp_path / "copy")
    segment = segments_of(tmp_path / "copy")[1].name
    change(tmp_path / "copy" / where.format(segment=segment), tmp_path / "outside")
    assert numbers(at(task, place)) == list(range(ROWS))
    assert tcp


def test_a_linked_secret_is_none(task: ReadTask, tmp_path: Path) -> None:
    place = copied(task, tmp_path / "copy")
    _linked(tmp_path / "copy" / "mqspark.nonce", tmp_path / "outside")
    assert openplaces.KEPT.store(place) is None


def test_a_link_that_turns_after_it_was_looked_at_leads_nowhere(tmp_path: Path) -> None:
    for name in ("allowed", "other"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
        (tmp_path / name / "mqspark.nonce").write_text(name)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "allowed")
    reader = StoreReader(link, None, Trust((str(tmp_path / "allowed"),)))
    link.unlink()
    link.symlink_to(tmp_path / "other")
    assert reader.nonce() == "allowed"


def test_a_log_elsewhere_is_looked_at_by_itself(task: ReadTask, tmp_path: Path) -> None:
    """Its directory may lie outside of the store, when the broker has proved that and it may be read."""
    place = copied(task, tmp_path / "copy")
    shutil.move(tmp_path / "copy" / "commitlog", tmp_path / "log")
    secret = (tmp_path / "copy" / "mqspark.nonce").read_text()
    log = str(tmp_path / "log")
    place = replace(place, commit_log_path=log, proof=prove(secret, place.challenge, place.store_path, log))
    assert openplaces.KEPT.store(place) is not None
    (tmp_path / "log").chmod(0o777)
    assert openplaces.KEPT.store(place) is None
    with pytest.raises(Untrusted, match="none of the allowed directories"):
        StoreReader(place.store_path, log, Trust((place.store_path,)))


def test_a_broker_and_a_reader_of_before_use_the_socket(
    broker: Broker, task: ReadTask, monkeypatch: pytest.MonkeyPatch, tcp: list[QueueRange]
) -> None:
    client = BlockingClient(broker.namesrv)
    # A reader of before asks for the secret, and takes an empty one for none; its sink knows our brokers by the row.
    assert client.runtime_info(broker.address)["mqsparkStoreNonce"] == ""
    client.close()
    # A broker of before tells its secret, and answers no challenge.
    secret = (broker.store_path / "mqspark.nonce").read_text()
    told = {"mqsparkStorePath": str(broker.store_path), "mqsparkStoreNonce": secret}
    monkeypatch.setattr(BlockingClient, "runtime_info", lambda *_, **more: told)
    options = ReadOptions.parse({"nameserver": broker.namesrv, "topic": "T"}, streaming=False)
    driver = ClusterQueues(options)
    assert numbers(at(task, driver.place(broker.address))) == list(range(ROWS))
    driver.client.close()
    assert tcp


def test_an_idle_worker_lets_go_of_what_the_broker_deletes(
    task: ReadTask, tmp_path: Path, tcp: list[QueueRange]
) -> None:
    """Otherwise the disk does not get the space back, and the broker deletes what has not expired."""
    place = copied(task, tmp_path / "copy")
    assert numbers(at(task, place)) == list(range(ROWS))
    assert not tcp
    segments = segments_of(tmp_path / "copy")
    mapped = Path("/proc/self/maps")
    assert str(segments[0]) in mapped.read_text()
    assert str(segments[1]) in mapped.read_text()
    segments[0].unlink()
    eventually(lambda: str(segments[0]) not in mapped.read_text(), "the worker lets go")
    assert str(segments[1]) in mapped.read_text()
    assert numbers(at(task, place)) == list(range(ROWS)), "the rest comes over the socket"
    assert tcp


# --- files that are cut ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
def test_a_segment_that_is_cut_while_it_is_read_costs_no_row(
    task: ReadTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool, tcp: list[QueueRange]
) -> None:
    """The rest comes over the socket, from where the reader was: each row once."""
    place = copied(task, tmp_path / "copy")
    segments = segments_of(tmp_path / "copy")
    if not together:
        monkeypatch.setattr(fetch, "_read_together", lambda task, opened: None)
    decoded = 0
    whole = fetch.Decoder.batches

    def cutting(self: fetch.Decoder, *arguments: object) -> object:
        nonlocal decoded
        decoded += 1
        if decoded == 3:
            for segment in segments[1:]:
                os.truncate(segment, 0)
        return whole(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fetch.Decoder, "batches", cutting)
    monkeypatch.setattr(localstore, "LOG_BYTES", 16 << 10)
    assert numbers(at(task, place)) == list(range(ROWS))
    assert decoded > 3
    assert tcp


def test_a_file_that_was_cut_before_it_was_mapped_is_missed_at_its_last_record(tmp_path: Path) -> None:
    segment = _one_segment(tmp_path / "store")
    reader = StoreReader(tmp_path / "store", maps=True)
    entries = reader.entries("T", 0, 0, 3000)
    os.truncate(segment, int(entries["position"][1000]) + 100)
    with pytest.raises(StoreCorrupt):
        list(reader.pieces(entries["position"], entries["size"].astype(np.int64), 1 << 30))


_WORKER = """
    import os, sys, threading, time
    from pathlib import Path
    import numpy as np
    from mqspark.errors import InvalidMessage, StoreCorrupt
    from mqspark.store.tools.reader import StoreReader
    from mqspark.arrow.records.decode import Decoder
    from mqspark.arrow.records.records import Records

    root, spare = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()
    segment = root / "commitlog" / ("0" * 20)
    decoder = Decoder(("value", "key", "offset"), topic="T", broker="", queue_id=0)
    wanted = read = cut = 0

    def destroy():
        time.sleep(0.02)
        os.truncate(segment, len(spare) // 3)

    while cut < 5:
        segment.write_bytes(spare)
        reader = StoreReader(root, maps=True)
        entries = reader.entries("T", 0, 0, 3000)
        thread = threading.Thread(target=destroy)
        thread.start()
        try:
            while True:
                for piece in reader.pieces(entries["position"], entries["size"].astype(np.int64), 1 << 18):
                    assert piece.segment is not None, "mapped"
                    try:
                        batch = decoder(Records(piece.buffer), piece.places)
                    except InvalidMessage:
                        reader.check(piece)
                        raise
                    reader.check(piece)
                    read += batch.num_rows
                    assert all(v.as_py() == bytes([65 + v.as_py()[0] - 65]) * 1000 for v in batch.column(0)[:20])
        except StoreCorrupt:
            cut += 1
        thread.join()
    print(read > 0, cut)
"""


def _run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[3]
    return run_python(textwrap.dedent(script), *map(str, arguments), cwd=root)


def _one_segment(root: Path) -> Path:
    store = opened(root, mapped_file_size_commit_log=8 << 20, mapped_file_size_consume_queue=60_000)
    for number in range(3000):
        put(store, "T", 0, bytes([65 + number % 26]) * 1000)
    flush(store)
    store.close()
    return root / "commitlog" / ("0" * 20)


def test_a_worker_outlives_the_file_that_it_has_mapped(tmp_path: Path) -> None:
    """Cut at any moment of a read, again and again; what is taken for read is right."""
    segment = _one_segment(tmp_path / "store")
    shutil.copy(segment, tmp_path / "spare")
    ran = _run(_WORKER, tmp_path / "store", tmp_path / "spare")
    assert ran.returncode == 0, (ran.returncode, ran.stderr[-3000:])
    assert ran.stdout.split() == ["True", "5"]


def test_a_fault_that_is_not_ours_ends_the_process_as_ever(tmp_path: Path) -> None:
    """Python's own maps are not guarded, and a handler that was there before is told."""
    (tmp_path / "ours").write_bytes(bytes(1 << 16))
    (tmp_path / "other").write_bytes(bytes(1 << 16))
    script = """
        import faulthandler, mmap, os, sys
        from mqspark.store.disk.cuts import guarded_map
        if sys.argv[3] == "before":
            faulthandler.enable()
        fd = os.open(sys.argv[1], os.O_RDONLY)
        ours = guarded_map(fd, 1 << 16)
        if sys.argv[3] == "after":
            faulthandler.enable()
        ours.keep()
        os.truncate(sys.argv[1], 0)
        assert bytes(ours.view[:10]) == bytes(10) and not ours.is_whole()
        other = os.open(sys.argv[2], os.O_RDONLY)
        mapping = mmap.mmap(other, 1 << 16, access=mmap.ACCESS_READ)
        os.truncate(sys.argv[2], 0)
        mapping[:10]
    """
    for handler in ("before", "after", "without"):
        (tmp_path / "ours").write_bytes(bytes(1 << 16))
        (tmp_path / "other").write_bytes(bytes(1 << 16))
        ran = _run(script, tmp_path / "ours", tmp_path / "other", handler)
        assert ran.returncode == -7, (ran.returncode, ran.stderr)
        assert ("Bus error" in ran.stderr) == (handler != "without")


def test_a_log_read_without_a_broker_may_be_cut(tmp_path: Path) -> None:
    """``option("store")``, and the job that archives: an error, and the worker lives."""
    segment = _one_segment(tmp_path)
    script = """
        import os, sys
        from pathlib import Path
        from mqspark.errors import MQError
        from mqspark.arrow.files.logfiles import find_log, segment_bytes_of
        from pyspark_pymq.options import StoreOptions
        from mqspark.arrow.reading.segmentread import plan_segments, read_segment
        options = StoreOptions.parse({"store": sys.argv[1]}, streaming=False)
        log = find_log(options.log)
        (partition,) = plan_segments(log, 0, None)
        rows = read_segment(partition, options, ("value",))
        print(next(rows).num_rows > 0)
        os.truncate(sys.argv[2], 0)
        try:
            list(rows)
        except MQError as error:
            print(type(error).__name__)
    """
    ran = _run(script, tmp_path, segment)
    assert ran.returncode == 0, (ran.returncode, ran.stderr[-3000:])
    assert ran.stdout.split()[0] == "True"
    assert ran.stdout.split()[1] in ("StoreCorrupt", "InvalidMessage")


def test_copies_come_short_instead(tmp_path: Path) -> None:
    """Where nothing can be mapped."""
    segment = _one_segment(tmp_path)
    reader = StoreReader(tmp_path)
    entries = reader.entries("T", 0, 0, 3000)
    pieces = reader.pieces(entries["position"], entries["size"].astype("i8"), 1 << 18)
    assert next(pieces).segment is None
    os.truncate(segment, 1 << 19)
    with pytest.raises(StoreCorrupt):
        list(pieces)
