"""fsck, dump, stats and rebuild on directories that are sound, damaged, or made by RocketMQ."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mqspark.errors import InvalidMessage, StoreCorrupt, StoreLocked
from mqspark.message import TRANSACTION_PREPARED_TYPE
from mqspark.store import MessageStore, StoreConfig
from mqspark.store.disk.files import OsFiles
from mqspark.store.tools.dump import dump_index, dump_queue, dump_records, record_row
from mqspark.store.tools.fsck import FsckReport, fsck
from mqspark.store.tools.offlinestore import OfflineStore
from mqspark.store.tools.remake import remake
from mqspark.store.tools.storestats import store_stats
from mqspark.store.tools.wholesegments import complete_segments, incomplete_segments
from tests.support.clocks import ManualClock
from tests.support.draws import some
from tests.support.processes import run_python
from tests.support.store_tools import (
    QuickFiles,
    RoomyFiles,
    complete,
    crash,
    drain,
    flush,
    make_store,
    opened,
    put,
    put_synced,
    query,
)
from tests.unit.store.test_store_golden import GOLDEN, NAMES, SETTINGS

QUEUES = [("Orders", 0), ("Orders", 1), ("Other", 0)]


def filled(root: Path, count: int = 60) -> tuple[StoreConfig, list[tuple[tuple[str, int], int, int, bytes]]]:
    """A store that was stopped cleanly, and its messages: queue, queue offset, physical offset, body."""
    store = opened(root, None, QuickFiles())
    messages = []
    for number in range(count):
        queue = QUEUES[number % 3]
        body = b"message %d " % number * (number % 9 + 1)
        offset, position, _ = put(
            store, *queue, body, b"TAGS\x01T%d\x02KEYS\x01k%d\x02" % (number % 2, number)
        )
        messages.append((queue, offset, position, body))
        if number % 10 == 9:
            put_synced(store, "Orders", 0, b"half", sys_flag=TRANSACTION_PREPARED_TYPE)
    flush(store)
    store.close()
    return store.config, messages


def checked(config: StoreConfig) -> FsckReport:
    return fsck(OfflineStore(config))


def kinds(report: FsckReport, severity: str = "") -> set[str]:
    return {finding.kind for finding in report.findings if severity in ("", finding.severity)}


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def change(path: Path, at: int, xor: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= xor
    path.write_bytes(content)


def segment(root: Path, position: int) -> tuple[Path, int]:
    return root / "commitlog" / f"{position - position % 4096:020d}", position % 4096


def test_a_sound_store_has_no_findings_and_is_not_changed(tmp_path: Path) -> None:
    config, _ = filled(tmp_path)
    before = tree(tmp_path)
    report = checked(config)
    assert report.findings == []
    assert (report.records, report.entries, report.queues) == (66, 60, 3)
    assert report.index_entries == 120, "a key and a tag each"
    store_stats(OfflineStore(config))
    assert len(list(dump_records(OfflineStore(config)))) == 66
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("which", "step"),
    [
        (0, 3),
        (59, 3),
        *(
            pytest.param(which, 1, marks=pytest.mark.slow("every byte; every third is the fast twin"))
            for which in (0, 20, 31, 59)
        ),
    ],
)
def test_every_flipped_bit_that_something_covers_is_reported_with_its_offset(
    tmp_path: Path, which: int, step: int
) -> None:
    config, messages = filled(tmp_path)
    _, _, position, body = messages[which]
    path, low = segment(tmp_path, position)
    head = 88
    covered = [
        *range(8),  # size, magic
        *range(12, 16),  # queue id
        *range(20, 36),  # queue offset, physical offset
        *range(head - 4, head + len(body)),  # the body and its length
        head + len(body),  # length of the topic
    ]
    for at in covered[which % step :: step]:
        change(path, low + at, 1 << at % 8)
        report = checked(config)
        near = [finding for finding in report.findings if finding.offset == position]
        assert near, f"byte {at} of the record: {report.findings}"
        assert report.errors + report.lost
        assert report.records >= 65, "one record at most"
        change(path, low + at, 1 << at % 8)
    assert checked(config).findings == []


def test_changed_tags_and_keys_are_found_by_their_hashes(tmp_path: Path) -> None:
    config, messages = filled(tmp_path)
    _, _, position, _ = messages[30]
    path, low = segment(tmp_path, position)
    record = path.read_bytes()[low : low + 400]
    for text, kind in ((b"TAGS\x01T", "queue.differs"), (b"KEYS\x01k", "index.missing")):
        at = low + record.index(text) + len(text)
        change(path, at, 1)
        report = checked(config)
        assert kind in kinds(report, "error")
        assert {finding.offset for finding in report.findings} == {position}
        change(path, at, 1)


def test_a_lost_record_and_its_queue_entry_are_named_and_repair_makes_the_rest_agree(tmp_path: Path) -> None:
    config, messages = filled(tmp_path)
    queue, offset, position, body = messages[31]
    path, low = segment(tmp_path, position)
    change(path, low + 90, 0x10)
    report = checked(config)
    assert kinds(report) == {"log.damaged", "queue.lost-record"}
    (entry,) = [finding for finding in report.findings if finding.kind == "queue.lost-record"]
    assert (entry.topic, entry.queue_id, entry.queue_offset) == (*queue, offset)
    made = remake(config, ManualClock())
    assert (made.records, made.damaged) == (65, [(position, position + 88 + len(body) + 1 + 6 + 2 + 17)])
    report = checked(config)
    assert kinds(report) == {"log.damaged"}
    assert report.fillers == 1
    store = make_store(tmp_path)
    assert store.open().clean
    for other, place, _, text in messages:
        found = [m.body for m in drain(store, *other) if m.queue_offset == place]
        assert found == ([] if place == offset and other == queue else [text])


@pytest.mark.parametrize("name", ["consumequeue/Orders/1", "index"])
def test_wrong_bytes_in_queues_and_index_are_found_and_repaired(tmp_path: Path, name: str) -> None:
    config, messages = filled(tmp_path)
    sound = tree(tmp_path)
    target = sorted((tmp_path / name).iterdir())[0]
    change(target, 40 + 16 * 4 + 20 + 5 if name == "index" else 3 * 20 + 5, 0x01)
    assert checked(config).errors
    remake(config, ManualClock())
    assert checked(config).findings == []
    after = tree(tmp_path)
    for path, content in sound.items():
        if path.startswith(("consumequeue", "commitlog")) and any(content):
            assert after[path] == content, "the same bytes as a broker that never saw the damage"
    store = opened(tmp_path)
    (_, _, _, body) = messages[7]
    assert any(body in bytes(r) for r in query(store, "Orders", "k7", 9, 0, 1 << 62))


def test_missing_queues_and_a_missing_segment(tmp_path: Path) -> None:
    config, _ = filled(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "Other")
    assert "queue.lost" in kinds(checked(config), "error")
    remake(config, ManualClock())
    assert checked(config).findings == []
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    report = checked(config)
    (gap,) = [finding for finding in report.findings if finding.kind == "log.gap"]
    assert (gap.offset, gap.length) == (4096, 4096)


def _second(root: Path) -> Path:
    return root / "commitlog" / f"{4096:020d}"


CUTS: dict[str, Callable[[Path], object]] = {
    "halved": lambda root: os.truncate(_second(root), 2000),
    "empty": lambda root: os.truncate(_second(root), 0),
    "missing": lambda root: _second(root).unlink(),
    "too long": lambda root: os.truncate(_second(root), 5000),
    "the first one": lambda root: os.truncate(root / "commitlog" / f"{0:020d}", 500),
    "the last one": lambda root: os.truncate(sorted((root / "commitlog").iterdir())[-1], 3000),
}


@pytest.mark.parametrize("cut", CUTS)
def test_files_of_the_log_get_their_whole_length(tmp_path: Path, cut: str) -> None:
    config, messages = filled(tmp_path, count=100)
    CUTS[cut](tmp_path)
    incomplete = incomplete_segments(config)
    made = remake(config, ManualClock())
    assert len(incomplete) == 1
    # After a crash here it is rebuilt once more. The file that is written to has got its length from that.
    assert incomplete_segments(config) == (incomplete if cut != "the last one" else [])
    complete_segments(config)
    assert {path.stat().st_size for path in (tmp_path / "commitlog").iterdir()} == {4096}
    assert incomplete_segments(config) == []
    lost = {"halved", "empty", "missing", "the first one"}
    assert (len(made.damaged), made.lost_entries > 0) == (int(cut in lost), cut in lost)
    if cut != "the last one":
        assert checked(config).findings == []
    store = make_store(tmp_path)
    assert store.open().damaged == []
    served = [m.body for queue in QUEUES for m in drain(store, *queue)]
    assert len(served) + made.lost_entries + made.lost_queue_entries == len(messages)
    assert set(served) <= {body for *_, body in messages}


@pytest.mark.parametrize("step", ["write", "set_length"])
@pytest.mark.parametrize("cut", ["halved", "missing"])
def test_a_file_that_was_not_completed_to_its_end_is_completed_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str, step: str
) -> None:
    config, _ = filled(tmp_path, count=100)
    CUTS[cut](tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, step, _fail)
        with pytest.raises(OSError, match="power cut"):
            complete_segments(config)
    complete_segments(config)
    assert incomplete_segments(config) == []
    assert remake(config, ManualClock()).damaged == []


def _fail(*_: object) -> None:
    raise OSError(errno.EIO, "power cut")


def test_a_killed_store_has_notes_but_no_errors(store: MessageStore) -> None:
    for number in range(30):
        put(store, "Orders", 0, b"x" * number, b"KEYS\x01k\x02")
        store.pipeline.commit()
    crash(store)
    report = checked(store.config)
    assert not report.errors
    assert not report.lost
    assert "store.unclean" in kinds(report, "note")
    stats = store_stats(OfflineStore(store.config))
    assert (stats.messages, stats.clean, stats.queue_lag_bytes) == (30, False, 0)


def test_a_store_in_use_can_be_read_but_not_changed(store: MessageStore) -> None:
    put_synced(store, "Orders", 0, b"x")
    report = checked(store.config)
    assert report.in_use
    assert not report.errors
    with pytest.raises(StoreLocked):
        remake(store.config, ManualClock())
    put_synced(store, "Orders", 0, b"y")
    assert [m.body for m in drain(store, "Orders", 0)] == [b"x", b"y"]


def test_offsets_of_deleted_records_are_not_given_out_again_after_a_rebuild(tmp_path: Path) -> None:
    clock = ManualClock()
    files = RoomyFiles(clock)
    store = make_store(tmp_path, clock, files)
    store.open()
    put(store, "Gone", 0, b"old" * 100)
    for _ in range(40):
        put_synced(store, "Stays", 0, b"x" * 400)
    complete(store.maintenance())
    files.expired = {segment.path.name for segment in store.log.segments[:3]}
    store.clean_expired()
    for _ in range(4):
        complete(store.maintenance())
    assert store.log.min_offset > 0
    ends = {(topic, 0): store.offsets.max_offset(topic, 0) for topic in ("Gone", "Stays")}
    begin = store.offsets.min_offset("Stays", 0)
    store.close()
    made = remake(store.config, clock)
    assert made.queues == 2
    assert checked(store.config).errors == 0
    again = make_store(tmp_path, clock, files)
    again.open()
    assert {queue: again.offsets.max_offset(*queue) for queue in ends} == ends
    assert again.offsets.min_offset("Stays", 0) == begin
    assert put(again, "Gone", 0, b"new")[0] == ends["Gone", 0]
    flush(again)


def test_what_a_dump_says(tmp_path: Path) -> None:
    config, messages = filled(tmp_path)
    store = OfflineStore(config)
    queue, offset, position, body = messages[31]
    row = record_row(store, position)
    assert row is not None
    assert (row["topic"], row["queueId"], row["queueOffset"], row["body"]) == (*queue, offset, body)
    assert row["properties"]["KEYS"] == "k31"
    assert record_row(store, position + 1) is None
    assert next(dump_records(store, position))["physicalOffset"] == position
    assert next(dump_records(store, position + 1))["physicalOffset"] > position
    assert len(list(dump_records(store, topic="Other"))) == 20
    entries = list(dump_queue(store, *queue, offset))
    assert entries[0]["physicalOffset"] == position
    assert [entry["queueOffset"] for entry in entries] == list(range(offset, 20))
    with pytest.raises(InvalidMessage, match="has no queue 7"):
        next(dump_queue(store, "Orders", 7))
    (found,) = dump_index(store, topic=queue[0], key="k31")
    assert found["physicalOffset"] == position
    assert len(list(dump_index(store, position))) == 2 * (60 - 31)


def test_stats_come_from_the_ends_of_things(tmp_path: Path) -> None:
    config, messages = filled(tmp_path)
    stats = store_stats(OfflineStore(config))
    assert (stats.messages, stats.queues, stats.index_entries) == (60, 3, 120)
    assert (stats.queue_lag_bytes, stats.index_lag_bytes) == (0, 0)
    assert stats.topics["Orders"].messages == 40
    assert stats.end_offset > messages[-1][2]
    assert stats.oldest_ms == stats.newest_ms == 1_700_000_000_000
    assert stats.clean
    assert not stats.in_use


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_of_rocketmq(tmp_path: Path, name: str) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    config = StoreConfig(store_path_root_dir=str(tmp_path / "store"), **SETTINGS[name])
    before = tree(tmp_path)
    report = checked(config)
    assert report.records > 0
    assert report.index_entries > 0
    assert (report.errors, report.lost) == (0, 0), report.findings
    assert tree(tmp_path) == before


_MEASURE = """
import resource, sys
from mqspark.store import StoreConfig
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offlinestore import OfflineStore
from mqspark.store.tools.remake import remake
from mqspark.store.tools.dump import dump_records
from mqspark.store.tools.storestats import store_stats
from mqspark.store.tools.wholesegments import complete_segments
from tests.support.clocks import ManualClock

config = StoreConfig(store_path_root_dir=sys.argv[1])
OfflineStore(config)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[2] == "fsck":
    report = fsck(OfflineStore(config))
    assert report.records == int(sys.argv[3]) and not report.errors, report
elif sys.argv[2] == "dump":
    assert sum(1 for _ in dump_records(OfflineStore(config))) == int(sys.argv[3])
elif sys.argv[2] == "stats":
    assert store_stats(OfflineStore(config)).messages == int(sys.argv[3])
else:
    assert remake(config, ManualClock()).records == int(sys.argv[3])
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(used, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """512 MiB of log in segments of 128 MiB."""
    root = tmp_path_factory.mktemp("large")
    store = make_store(
        root,
        None,
        QuickFiles(),
        mapped_file_size_commit_log=128 << 20,
        mapped_file_size_consume_queue=6_000_000,
        max_hash_slot_num=100_000,
        max_index_num=400_000,
    )
    store.open()
    body = np.random.default_rng(1).bytes(8000)
    count = 0
    while store.log.position < 512 << 20:
        for _ in range(200):
            put(store, "Big", count % 8, body, b"KEYS\x01key%d\x02" % count)
            count += 1
        flush(store)
    store.close()
    return root, count


@pytest.mark.parametrize("tool", some(["stats", "dump", "fsck", "rebuild"], 1))
def test_memory_does_not_grow_with_the_store(large: tuple[Path, int], tool: str) -> None:
    """512 MiB of log and no tool needs more than 100 MiB for it, mapped pages counted, nor does a process it starts."""
    root, count = large
    done = run_python(_MEASURE, str(root), tool, str(count), check=True)
    for used_kib in map(int, done.stdout.split()):
        assert used_kib < 100 << 10, f"{used_kib >> 10} MiB"


def test_a_store_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OfflineStore(StoreConfig(store_path_root_dir=str(tmp_path / "nothing")))
    config = StoreConfig(store_path_root_dir=str(tmp_path))
    for tool in (OfflineStore, lambda config: remake(config, ManualClock())):
        with pytest.raises(
            StoreCorrupt, match=r"is not a store: there is no .*commitlog; if the log lies elsewhere"
        ):
            tool(config)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    with pytest.raises(StoreCorrupt, match=f"the store is {tmp_path}/store"):
        OfflineStore(config)
    with pytest.raises(StoreCorrupt, match=f"the store is {tmp_path}/store"):
        OfflineStore(StoreConfig(store_path_root_dir=str(tmp_path / "store" / "commitlog")))
    report = checked(StoreConfig(store_path_root_dir=str(tmp_path / "store")))
    assert (report.segments, report.records, report.findings) == (0, 0, [])


def test_what_does_not_belong_there_is_named(tmp_path: Path) -> None:
    config, _ = filled(tmp_path)
    for name in ("commitlog/notes", "index/notes", "index/20200101000000000"):
        (tmp_path / name).mkdir()
    report = checked(config)
    assert (report.errors, report.lost) == (0, 0)
    assert [finding.kind for finding in report.findings] == ["log.strange-file"] + ["index.strange-file"] * 2
    stray = tmp_path / "consumequeue" / "Orders" / "0" / f"{7:020d}"
    stray.touch()
    with pytest.raises(StoreCorrupt, match=f"{stray} does not belong .*: move it elsewhere"):
        checked(config)
