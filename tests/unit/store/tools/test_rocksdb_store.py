"""Directories of which RocketMQ has a part in RocksDB: refused with the way to convert them, or what is only left of it
is let pass. The trees are as RocketMQ 5.3.3 and 5.5.0 leave them (tests/interop/test_rocksdb_directory.py)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqspark.errors import StoreCorrupt
from mqspark.store import MessageStore, StoreConfig
from mqspark.store.tools.fsck import fsck
from mqspark.store.tools.offlinestore import OfflineStore
from mqspark.store.tools.remake import remake
from mqspark_server.commands.local.store_cli import store as store_command
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles, flush, opened, pending, put, put_synced
from tests.unit.store.store_kit import bodies

TABLES = {
    "topics": "topics.json",
    "subscriptionGroups": "subscriptionGroup.json",
    "consumerOffsets": "consumerOffset.json",
}
COUNT = 40
SEGMENT_BYTES = 4096


def filled(root: Path) -> StoreConfig:
    """A stopped store of several segments; queue T/0 has messages in all of them, Early/0 only in the first."""
    store = opened(root, None, QuickFiles(), mapped_file_size_commit_log=SEGMENT_BYTES)
    put(store, "Early", 0, b"early")
    for number in range(COUNT):
        put_synced(store, "T", 0, b"%0400d" % number)
    store.close()
    for name in ("mqspark.checkpoint", "mqspark.ends", "mqspark.index", "mqspark.nonce"):
        (root / name).unlink(missing_ok=True)
    return store.config


def database(path: Path, age_s: float = 0) -> None:
    """What a RocksDB with something in it looks like from outside."""
    path.mkdir(parents=True, exist_ok=True)
    files = (
        "CURRENT",
        "IDENTITY",
        "LOCK",
        "LOG",
        "MANIFEST-000005",
        "OPTIONS-000007",
        "000008.log",
        "000009.sst",
    )
    for name in files:
        file = path / name
        file.write_bytes(b"x")
        times = (file.stat().st_mtime - age_s,) * 2
        os.utime(file, times)


def in_rocksdb_only(root: Path) -> None:
    """As storeType=defaultRocksDB leaves it."""
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "batchconsumequeue", ignore_errors=True)
    database(root / "consumequeue")


def reopened(config: StoreConfig) -> MessageStore:
    return opened(
        Path(config.store_path_root_dir), None, QuickFiles(), mapped_file_size_commit_log=SEGMENT_BYTES
    )


def kinds(config: StoreConfig) -> set[str]:
    return {part.kind for part in OfflineStore(config).in_rocksdb}


def test_queues_in_rocksdb_are_refused_and_built_from_a_whole_log(tmp_path: Path) -> None:
    config = filled(tmp_path)
    in_rocksdb_only(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(StoreCorrupt, match=r"in RocksDB .consumequeue/. and in no files.*fsck --repair"):
        reopened(config)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} - set(before) <= {tmp_path / "lock"}
    report = fsck(OfflineStore(config))
    assert report.findings[0].kind == "rocksdb.queues", report.findings
    assert "fsck --repair" in report.findings[0].repair
    stats = CliRunner().invoke(store_command, ["stats", str(tmp_path)])
    assert "not shown: the queues, or their older part, are in" in stats.stderr
    remake(config, ManualClock())
    assert kinds(config) == set()
    store = reopened(config)
    assert bodies(store, "T") == [b"%0400d" % number for number in range(COUNT)]
    assert bodies(store, "Early") == [b"early"]


def test_queues_of_a_log_that_has_lost_its_begin_are_not_built_from_it(tmp_path: Path) -> None:
    config = filled(tmp_path)
    in_rocksdb_only(tmp_path)
    min(path for path in (tmp_path / "commitlog").iterdir()).unlink()
    with pytest.raises(StoreCorrupt, match=f"log begins at {SEGMENT_BYTES}.*brokerRole=SLAVE"):
        reopened(config)
    with pytest.raises(StoreCorrupt, match="offsets of expired messages"):
        remake(config, ManualClock())
    assert (tmp_path / "consumequeue/CURRENT").exists()
    assert kinds(config) == {"rocksdb.queues"}


@pytest.mark.parametrize("directory", ["consumequeue", "consumequeue_rocksdb"])
def test_a_database_beside_queues_in_files_is_let_pass(tmp_path: Path, directory: str) -> None:
    config = filled(tmp_path)
    database(tmp_path / directory)
    min(path for path in (tmp_path / "commitlog").iterdir()).unlink()
    assert kinds(config) == set()
    store = reopened(config)
    assert store.offsets.max_offset("T", 0) == COUNT
    assert store.offsets.max_offset("Early", 0) == 1


def test_queues_in_files_that_begin_later_than_the_log_are_refused(tmp_path: Path) -> None:
    """As RocketMQ 5.5 leaves them, when rocksdbCQDoubleWriteEnable is new."""
    config = filled(tmp_path)
    database(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "consumequeue/Early")
    files = sorted((tmp_path / "consumequeue/T/0").iterdir())
    assert len(files) > 1
    assert kinds(config) == set()
    files[0].unlink()
    assert kinds(config) == {"rocksdb.queues"}


def test_light_queues_that_only_rocksdb_has_are_refused(tmp_path: Path) -> None:
    """As combineCQUseRocksdbForLmq leaves them."""
    settings = {
        "enable_lmq": True,
        "enable_multi_dispatch": True,
        "mapped_file_size_commit_log": SEGMENT_BYTES,
    }
    store = opened(tmp_path, None, QuickFiles(), **settings)
    for number in range(COUNT):
        put(store, "T", 0, b"%0400d" % number)
    light = pending("T", 0, b"light", b"INNER_MULTI_DISPATCH\x01%LMQ%one")
    store.appender.put_dispatched(["%LMQ%one"], light)
    flush(store)
    store.close()
    (tmp_path / "mqspark.checkpoint").unlink()
    database(tmp_path / "consumequeue")
    assert kinds(store.config) == set()
    shutil.rmtree(tmp_path / "consumequeue/%LMQ%one")
    (found,) = OfflineStore(store.config).in_rocksdb
    assert "light queues" in found.text
    assert "-c BROKER.CONF" in found.advice
    remake(store.config, ManualClock())
    assert kinds(store.config) == set()
    store = opened(tmp_path, None, QuickFiles(), **settings)
    assert bodies(store, "%LMQ%one") == [b"light"]
    store.close()


def test_a_database_of_a_store_without_a_message_is_let_pass(tmp_path: Path) -> None:
    opened(tmp_path, None, QuickFiles()).close()
    in_rocksdb_only(tmp_path)
    opened(tmp_path, None, QuickFiles()).close()


@pytest.mark.parametrize("name", [*TABLES, "metadata", "rdb"])
def test_a_table_is_refused_while_rocksdb_has_a_newer_one(tmp_path: Path, name: str) -> None:
    config = filled(tmp_path)
    (tmp_path / "config").mkdir(exist_ok=True)
    database(tmp_path / "config" / name, age_s=100)
    with pytest.raises(StoreCorrupt, match=f"{name} (is )?newer than"):
        reopened(config)
    tables = [TABLES[name]] if name in TABLES else list(TABLES.values())
    for table in tables:
        (tmp_path / "config" / table).write_text("{}")
    assert kinds(config) == set()
    reopened(config).close()
    old = (tmp_path / "config" / tables[0]).stat().st_mtime - 1000
    os.utime(tmp_path / "config" / tables[0], (old, old))
    assert kinds(config) == {"rocksdb.tables"}


@pytest.mark.parametrize(("name", "kind"), [("kvStore", "rocksdb.pop"), ("rocksdbstore", "rocksdb.messages")])
def test_state_in_rocksdb_is_refused_unless_it_is_empty(tmp_path: Path, name: str, kind: str) -> None:
    config = filled(tmp_path)
    database(tmp_path / name)
    assert kinds(config) == {kind}
    (tmp_path / name / "000009.sst").unlink()
    (tmp_path / name / "000008.log").write_bytes(b"")
    assert kinds(config) == set()
