"""Directories of a real RocketMQ 5.3.3 open here, and every message is served with the bytes it served
itself."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.record.record import decode_record
from mqspark.store import GetStatus, MessageStore
from mqspark.store.tools.backup import back_up
from mqspark.store.tools.restore import restore
from tests.support.clocks import ManualClock
from tests.support.draws import some
from tests.support.store_tools import crash, drain, make_store

GOLDEN = Path(__file__).parents[2] / "golden/store"
NAMES = ["clean", "kill9", "variant"]
SETTINGS: dict[str, dict[str, Any]] = {
    "clean": {},
    "kill9": {},
    "variant": {"enable_lmq": True, "enable_multi_dispatch": True, "enabled_append_prop_crc": True},
}
"""As the broker ran that wrote the directory."""


@pytest.fixture
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with tarfile.open(GOLDEN / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    yield tmp_path / "store"
    shutil.rmtree(tmp_path / "store")


def manifest(name: str) -> list[dict[str, Any]]:
    lines = gzip.decompress((GOLDEN / f"{name}.manifest.jsonl.gz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines]


def assert_serves(store: MessageStore, name: str) -> None:
    queues: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in manifest(name):
        queues.setdefault((record["queueTopic"], record["pulledQueueId"]), []).append(record)
    for (topic, queue_id), records in queues.items():
        offset = store.offsets.min_offset(topic, queue_id)
        served: list[int] = []
        for record in records:
            where = (topic, queue_id, record["queueOffset"])
            found = store.reads.get(topic, queue_id, offset, 1, 1)
            stored = b"".join(found.buffers)
            messages = int(record["properties"].get("INNER_NUM", "1"))
            assert found.count == messages, where
            assert zlib.crc32(stored) == record["recordCrc32"], where
            message = decode_record(stored, decompress=False)
            assert message.physical_offset == record["commitLogOffset"], where
            assert message.store_size_bytes == record["storeSize"], where
            assert message.properties == record["properties"], where
            assert message.offset_message_id == record["offsetMsgId"], where
            assert (message.topic, message.queue_id) == (record["topic"], record["queueId"]), where
            assert message.queue_offset == record["queueOffset"], where
            assert message.store_timestamp_ms == record["storeTimestamp"], where
            assert zlib.crc32(message.body) == record["storedBodyCrc32"], where
            assert bytes(store.reads.record_at(message.physical_offset) or b"") == stored, where
            assert store.offsets.store_timestamp_at(topic, queue_id, offset) == record["storeTimestamp"], (
                where
            )
            served += range(record["queueOffset"], record["queueOffset"] + messages)
            offset = found.next_offset
        assert offset == store.offsets.max_offset(topic, queue_id), (topic, queue_id)
        assert [message.queue_offset for message in drain(store, topic, queue_id)] == served
    for line in (GOLDEN / f"{name}.queues.jsonl").read_text().splitlines():
        queue = json.loads(line)
        assert store.offsets.min_offset(queue["topic"], queue["queueId"]) == queue["minOffset"], queue
        assert store.offsets.max_offset(queue["topic"], queue["queueId"]) == queue["maxOffset"], queue


@pytest.mark.parametrize(("directory", "name"), [(name, name) for name in NAMES], indirect=["directory"])
def test_every_message_is_served(directory: Path, name: str) -> None:
    kept = {
        path: path.read_bytes()
        for folder in ("batchconsumequeue", "consumequeue_ext", "index", "timerlog")
        for path in sorted((directory / folder).rglob("*"))
        if path.is_file()
    }
    store = make_store(directory, **SETTINGS[name])
    report = store.open()
    assert report.clean == (name != "kill9")
    assert (report.damaged, report.torn_bytes, report.ignored_records) == ([], 0, 0)
    assert_serves(store, name)
    store.close()
    assert not (directory / "abort").exists()
    for path, content in kept.items():
        # After a kill the index files that may not be on disk are made again.
        if report.clean or path.parent.name != "index":
            assert path.read_bytes() == content, f"{path} was touched"
    again = make_store(directory, **SETTINGS[name])
    assert again.open().end_position == report.end_position
    assert_serves(again, name)
    again.close()


@pytest.mark.parametrize(("directory", "name"), [(name, name) for name in NAMES], indirect=["directory"])
def test_queues_are_rebuilt_as_rocketmq_built_them(directory: Path, name: str) -> None:
    kinds = ("consumequeue", "batchconsumequeue")
    files = {
        path: path.read_bytes()
        for kind in kinds
        for path in sorted((directory / kind).rglob("*"))
        if path.is_file()
    }
    for kind in kinds:
        shutil.rmtree(directory / kind, ignore_errors=True)
    store = make_store(
        directory,
        mapped_file_size_consume_queue=2000,
        mapper_file_size_batch_consume_queue=4600,
        **SETTINGS[name],
    )
    store.open()
    assert_serves(store, name)
    store.close()
    for path, content in files.items():
        if name == "variant" and path.parts[-4] == "consumequeue" and "%LMQ%" not in path.parts[-3]:
            # There the tags code is the address of a ConsumeQueueExt unit.
            assert [path.read_bytes()[i : i + 12] for i in range(0, 2000, 20)] == [
                content[i : i + 12] for i in range(0, 2000, 20)
            ]
        else:
            assert path.read_bytes() == content, path


@pytest.mark.parametrize("directory", ["clean"], indirect=True)
def test_a_killed_process_leaves_it_readable(directory: Path) -> None:
    crash(_opened(directory))
    store = make_store(directory)
    assert not store.open().clean
    assert_serves(store, "clean")
    assert store.reads.get("GsPlain", 0, 650, 1, 1).status is GetStatus.OFFSET_OVERFLOW_ONE


def _opened(directory: Path) -> MessageStore:
    store = make_store(directory)
    store.open()
    return store


@pytest.mark.parametrize(
    ("directory", "name"), some([(name, name) for name in NAMES], 1, several=True), indirect=["directory"]
)
def test_a_backup_of_it_serves_every_message(directory: Path, name: str, tmp_path: Path) -> None:
    store = make_store(directory, **SETTINGS[name])
    done = back_up(store.config, tmp_path / "backup", ManualClock())
    assert done.manifest.newest_ms == max(record["storeTimestamp"] for record in manifest(name))
    back = make_store(tmp_path / "restored", **SETTINGS[name])
    restore(tmp_path / "backup", back.config)
    back.open()
    assert back.damages.found == []
    assert_serves(back, name)
    crash(back)
