"""RocketMQ's ``compaction/``: a real broker's files read, and the same files written (golden/compaction)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from mqspark.errors import ConfigError
from mqspark.message import MessageExt
from mqspark.record.record import decode_record
from mqspark.store import MessageStore
from mqspark.store.compaction.rocketcompaction import RocketCompaction
from mqspark.store.config import StoreConfig
from mqspark.store.tools.compactionfiles import write_compaction
from mqspark.store.tools.reader import StoreReader
from tests.support.store_tools import put, put_synced

GOLDEN = Path(__file__).parents[3] / "golden" / "compaction"
TOPIC = "Compacted"
SIZES = {"compaction_mapped_file_size": 4600, "compaction_cq_mapped_file_size": 460}


def unpack(name: str, root: Path) -> None:
    with tarfile.open(GOLDEN / name) as archive:
        archive.extractall(root, filter="data")


def files(root: Path) -> dict[str, bytes]:
    paths = sorted(path for path in (root / "compaction").rglob("*") if path.is_file())
    return {str(path.relative_to(root / "compaction")): path.read_bytes() for path in paths}


def kept(root: Path, topic: str, queue_id: int) -> list[MessageExt]:
    found = RocketCompaction(root, topic, queue_id)
    messages = [decode_record(found.record(offset)[0]) for offset in found.offsets(0, 1 << 60)]
    assert [message.queue_offset for message in messages] == found.offsets(0, 1 << 60)
    return messages


def test_what_rocketmq_has_compacted_is_what_it_served(tmp_path: Path) -> None:
    unpack("compacted.tar.gz", tmp_path)
    served = json.loads((GOLDEN / "served.json").read_text())
    for queue_id, offsets in served.items():
        assert RocketCompaction(tmp_path, TOPIC, int(queue_id)).offsets(0, 1 << 60) == offsets
        messages = kept(tmp_path, TOPIC, int(queue_id))
        # Everything before the file that was being written is the last of its key.
        newest = {message.keys: message.queue_offset for message in messages}
        assert len(newest) < len(messages)
        assert all(f"value {message.queue_offset} ".encode() in message.body for message in messages)


def test_the_same_files_are_written_as_a_real_broker_dispatches_them(tmp_path: Path) -> None:
    unpack("dispatched.tar.gz", tmp_path)
    theirs = files(tmp_path)
    del theirs["position-checkpoint"]
    written = write_compaction(StoreConfig(store_path_root_dir=str(tmp_path), **SIZES), [TOPIC])
    assert (written.queues, written.records) == (2, 140)
    # Another time from the same: only the offsets below the log would come from compaction/.
    assert write_compaction(StoreConfig(store_path_root_dir=str(tmp_path), **SIZES), [TOPIC]) == written
    ours = files(tmp_path)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 20
    for name, data in theirs.items():
        assert ours[name] == data, name


def test_what_the_log_has_no_longer_is_taken_over(tmp_path: Path) -> None:
    unpack("dispatched.tar.gz", tmp_path)
    unpack("compacted.tar.gz", tmp_path)
    expected = [message.body for message in kept(tmp_path, TOPIC, 0)]
    (tmp_path / "commitlog" / f"{0:020d}").rename(tmp_path / "commitlog" / f"{1 << 17:020d}")
    assert StoreReader(tmp_path).bounds(TOPIC, 0) == (70, 70)
    write_compaction(StoreConfig(store_path_root_dir=str(tmp_path), **SIZES), [TOPIC])
    assert [message.body for message in kept(tmp_path, TOPIC, 0)] == expected


def test_a_kill_between_the_renames_loses_nothing(tmp_path: Path, store: MessageStore) -> None:
    put(store, "C", 0, b"x", b"KEYS\x01k\x02")
    put_synced(store, "D", 0, b"x" * 3000, b"KEYS\x01k\x02")
    store.close()
    unpack("compacted.tar.gz", tmp_path)
    (tmp_path / "compaction").rename(tmp_path / "mqspark.compaction.old")
    (tmp_path / "mqspark.compaction.new").mkdir()
    config = StoreConfig(
        store_path_root_dir=str(tmp_path), compaction_mapped_file_size=460, compaction_cq_mapped_file_size=460
    )
    with pytest.raises(ConfigError, match="larger than a file of 2300"):
        write_compaction(config, ["D"])
    assert RocketCompaction(tmp_path, TOPIC, 0), "found again"
    write_compaction(config, ["C"])
    (message,) = kept(tmp_path, "C", 0)
    assert message.body == b"x"
    assert not RocketCompaction(tmp_path, TOPIC, 0), "a topic that is not compacted any more"
    assert sorted(path.name for path in tmp_path.iterdir() if "compaction" in path.name) == ["compaction"]
