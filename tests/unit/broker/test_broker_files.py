"""Files under ``config/`` over restarts; what an operator cleans."""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from mqspark.broker.config import BrokerRole
from mqspark.broker.tables.ranges import found_in_tables
from mqspark.errors import StoreCorrupt
from mqspark.message import encode_properties
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.slices import finished
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.retention import DiskUsage
from mqspark.store.disk.savedtables import BLOCK_BYTES, PAUSE_S, SavedTable
from mqspark.store.tools.offlinestore import OfflineStore
from tests.support.store_tools import FaultyFiles
from tests.support.storefiles import segments_of
from tests.unit.broker.admin.admin_kit import commit, create, group
from tests.unit.broker_kit import SEND, Bench, Peer, last_registration, namesrv_peer, send_ext

GOLDEN = Path(__file__).parents[2] / "golden"


# --- files ---


def test_everything_is_there_after_a_restart(bench: Bench, peer: Peer) -> None:
    create(peer, "Kept", attributes="+message.type=FIFO")
    group(peer, "CG")
    peer.ask(SEND, send_ext("Kept"), b"a")
    commit(peer, "CG", "Kept", 0, 1)
    peer.ask(
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "CG", "topic": "Kept", "readable": "false"}
    )
    version = bench.broker.state.topics.data_version
    bench.reopen()
    state = bench.broker.state
    topic = state.topics.get("Kept")
    assert topic is not None
    assert topic.config.attributes == {"message.type": "FIFO"}
    assert state.topics.data_version == version
    assert "CG" in state.subscriptions
    assert state.subscriptions.is_read_forbidden("CG", "Kept")
    assert state.offsets.queues("CG", "Kept") == {0: 1}
    assert not bench.broker.jobs_due


def test_offsets_are_saved_every_five_seconds(bench: Bench, peer: Peer) -> None:
    peer.ask(SEND, send_ext(), b"a")
    group(peer, "CG")
    commit(peer, "CG", "T", 0, 1)
    path = bench.directory / "config" / "consumerOffset.json"
    bench.run_jobs()
    assert not path.exists()
    bench.clock.advance(5_000)
    bench.run_jobs()
    text = path.read_text()
    assert '"offsetTable":{\n\t\t"T@CG":{0:1\n\t\t}\n\t}' in text or '"T@CG":{' in text
    assert fastjson.loads(text.encode())["offsetTable"] == {"T@CG": {"0": 1}}


def test_the_version_of_the_offsets_steps_with_the_commits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, consumer_offset_update_version_step=10)
    offsets = bench.broker.state.offsets
    for offset in range(25):
        offsets.commit("CG", "T", 0, offset)
    assert offsets.data_version.counter == 2


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, bench: Bench, name: str) -> None:
    bench.close()
    path = tmp_path / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"dataVersion":7')
    path.with_name(name + ".bak").unlink(missing_ok=True)
    with pytest.raises(StoreCorrupt, match=name):
        bench.open()
    bench.store.close()
    path.with_name(name + ".bak").write_text('{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1}}')
    bench.open()  # the .bak is good


def test_a_store_of_the_real_broker(tmp_path: Path) -> None:
    """config/*.json as RocketMQ 5.3.3 left them."""
    import tarfile

    with tarfile.open(GOLDEN / "store" / "clean.tar.gz") as archive:
        members = [member for member in archive.getmembers() if "/config/" in member.name]
        for member in members:
            if member.isfile() and member.name.endswith(".json"):
                target = tmp_path / "config" / Path(member.name).name
                target.parent.mkdir(exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())
    assert (tmp_path / "config" / "topics.json").exists()
    bench = Bench(tmp_path)
    recorded = fastjson.loads((tmp_path / "config" / "topics.json").read_bytes())
    topics = bench.broker.state.topics
    assert {"GsPlain", "GsBcq", "GsTx"} <= recorded["topicConfigTable"].keys() & set(topics.names())
    assert topics.data_version.counter == recorded["dataVersion"]["counter"]
    inner = topics.get("GsBcq")
    assert inner is not None
    assert inner.inner_batch
    assert bench.peer().ask(SEND, send_ext("GsBcq"), b"x").code == 0
    offsets = fastjson.loads((tmp_path / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert offsets
    wrapper = finished(bench.broker.state.offsets.wrapper_in_slices())
    assert wrapper.offset_table == {
        key: {int(queue_id): offset for queue_id, offset in queues.items()} for key, queues in offsets.items()
    }


def test_a_name_server_that_is_current_need_not_be_told(bench: Bench) -> None:
    namesrv, _, registrar = namesrv_peer()
    registration = last_registration(bench.broker)
    registrar.ask(RequestCode.REGISTER_BROKER, registration.header, registration.body)
    assert registrar.ask(RequestCode.QUERY_DATA_VERSION, *bench.broker.publication.version_query()).ext == {
        "changed": "false"
    }
    create(bench.peer(), "New")
    assert registrar.ask(RequestCode.QUERY_DATA_VERSION, *bench.broker.publication.version_query()).ext == {
        "changed": "true"
    }
    namesrv.routes.unregister(namesrv.routes.live_brokers()[0].identity)
    assert registrar.ask(RequestCode.QUERY_DATA_VERSION, *bench.broker.publication.version_query()).ext == {
        "changed": "true"
    }


@pytest.mark.parametrize(("perm", "enabled", "after"), [(6, True, 7), (7, False, None), (7, True, 7)])
def test_a_template_from_a_file_follows_the_setting(
    tmp_path: Path, perm: int, enabled: bool, after: int | None
) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    config = {"topicName": "TBW102", "readQueueNums": 3, "writeQueueNums": 3, "perm": perm}
    version = {"counter": 9, "stateVersion": 0, "timestamp": 1}
    path.write_text(json.dumps({"dataVersion": version, "topicConfigTable": {"TBW102": config}}))
    bench = Bench(tmp_path, auto_create_topic_enable=enabled)
    topic = bench.broker.state.topics.get("TBW102")
    assert (topic and topic.config.perm) == after
    if topic is not None:
        assert topic.config.write_queue_nums == 3


def test_expired_messages_are_deleted_when_an_operator_asks(bench: Bench, peer: Peer) -> None:
    for _ in range(4):
        assert peer.ask(SEND, send_ext(), b"x" * (3 << 20)).code == 0
    first = segments_of(bench.directory)[0]
    long_ago = bench.clock.now_ms() / 1000 - 4 * 3600
    os.utime(first, (long_ago, long_ago))
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"fileReservedTime=3\n").code == 0
    assert peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    bench.flush()
    bench.run_jobs()
    bench.clock.advance(10_000)
    bench.run_jobs()
    assert not first.exists()
    ext = {"topic": "T", "queueId": "0"}
    assert peer.ask(RequestCode.GET_MIN_OFFSET, ext).ext["offset"] == "1"
    assert peer.ask(RequestCode.GET_MAX_OFFSET, ext).ext["offset"] == "4"
    behind = peer.pull(offset=0)
    assert behind.code == ResponseCode.PULL_OFFSET_MOVED
    assert behind.ext["nextBeginOffset"] == "1"
    assert peer.pull(offset=1).code == 0
    assert bench.broker.runtime_info()["commitLogMinOffset"] == str(1 << 22)
    assert peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
    bench.run_jobs()
    assert peer.ask(RequestCode.GET_MAX_OFFSET, ext).ext["offset"] == "4"


def test_a_disk_over_the_mark_is_service_not_available(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = bench.peer()
    assert peer.ask(SEND, send_ext(), b"before").code == 0
    settings = b"diskSpaceWarningLevelRatio=90\ndiskSpaceCleanForciblyRatio=85\n"
    assert peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, settings).code == 0
    used = 91
    monkeypatch.setattr(bench.store.files, "disk", lambda path: (1, DiskUsage(used, 100 - used)))
    bench.clock.advance(10_000)
    bench.run_jobs()
    answer = peer.ask(SEND, send_ext(), b"refused")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "91.0% full" in (answer.remark or "")
    assert peer.pull().code == 0
    assert create(peer, "StillMade") == 0
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "StillMade"}).code == 0
    used = 50
    bench.clock.advance(10_000)
    bench.run_jobs()
    assert peer.ask(SEND, send_ext(), b"after").code == 0


def test_retention_settings_are_checked_when_they_are_changed(bench: Bench, peer: Peer) -> None:
    answer = peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"fileReservedTime=9\ndeleteWhen=25\n")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "deleteWhen" in (answer.remark or "")
    assert (bench.store_config.file_reserved_time, bench.store_config.delete_when) == (72, "04")


def test_long_tables_are_encoded_in_pieces_beside_the_loop(bench: Bench) -> None:
    """On the loop only the names are noted; the thread writes what it finds under each then."""
    topics, offsets = bench.broker.state.topics, bench.broker.state.offsets
    for number in range(200):
        topics.put(TopicConfig(topic_name=f"T{number:03}", read_queue_nums=4, write_queue_nums=4))
        offsets.commit("CG", f"T{number:03}", 0, number)
    in_topics, in_offsets = topics.snapshot()(), offsets.snapshot()()
    topics.put(TopicConfig(topic_name="T150", read_queue_nums=8, write_queue_nums=8))
    topics.put(TopicConfig(topic_name="Later", read_queue_nums=4, write_queue_nums=4))
    topics.remove("T151")
    offsets.commit("CG", "T150", 0, 1_000)
    pieces = list(in_topics)
    assert len(pieces) > 200 // fastjson.PIECE_ENTRIES
    table = fastjson.loads(b"".join(pieces))["topicConfigTable"]
    assert list(table) == sorted(table)
    assert {name for name in table if name.startswith("T0")} == {f"T0{number:02}" for number in range(100)}
    assert table["T150"]["readQueueNums"] == 8
    assert "Later" not in table
    assert "T151" not in table
    pieces = list(in_offsets)
    assert len(pieces) > 200 // fastjson.PIECE_ENTRIES
    assert fastjson.loads(b"".join(pieces))["offsetTable"]["T150@CG"] == {"0": 1_000}


def test_a_thread_that_saves_pauses_after_each_piece(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("mqspark.store.disk.savedtables.time.sleep", pauses.append)

    class Table:
        generation = 1

        def load(self, data: bytes) -> None:
            raise AssertionError(data)

        def snapshot(self) -> Callable[[], Iterable[bytes]]:
            return lambda: iter([b"a", b"b", b"c"])

    table = SavedTable(Table(), ConfigFile(tmp_path / "t.json"))
    job = table.job()
    job.run()
    assert (tmp_path / "t.json").read_bytes() == b"abc"
    assert pauses == [PAUSE_S] * 2


class Long:
    """A table of some megabytes, whose encoder fails behind ``until`` pieces."""

    generation = 1

    def __init__(self, until: int = 1_000) -> None:
        self.until = until
        self.made = 0

    def load(self, data: bytes) -> None:
        raise AssertionError(data)

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        def encode() -> Iterator[bytes]:
            for number in range(200):
                if number == self.until:
                    raise RuntimeError("no more")
                self.made += 1
                yield b"%03d\n" % number * 5_000

        return encode


def test_a_long_table_is_never_in_memory_as_a_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mqspark.store.disk.savedtables.time.sleep", lambda seconds: None)
    files, table = FaultyFiles(), Long()
    digests: list[int] = []
    saved = SavedTable(table, ConfigFile(tmp_path / "t.json", files))
    saved.tell_saves(digests.append)
    plain = files.write
    behind: list[tuple[int, int]] = []

    def write(fd: int, data: bytes, offset: int) -> None:
        behind.append((table.made * 20_000 - offset - len(data), len(data)))
        plain(fd, data, offset)

    monkeypatch.setattr(files, "write", write)
    saved.job().run()
    content = (tmp_path / "t.json").read_bytes()
    assert content == b"".join(b"%03d\n" % number * 5_000 for number in range(200))
    assert digests == [zlib.crc32(content)]
    most = BLOCK_BYTES + 20_000
    assert all(waiting <= 2 * most and size <= most for waiting, size in behind)
    assert len(behind) > 10


def test_a_table_that_cannot_be_encoded_leaves_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mqspark.store.disk.savedtables.time.sleep", lambda seconds: None)
    path = tmp_path / "t.json"
    path.write_bytes(b"before")
    saved = SavedTable(Long(until=150), ConfigFile(path))
    with pytest.raises(RuntimeError, match="no more"):
        saved.job().run()
    assert path.read_bytes() == b"before"


def test_long_saves_of_offsets_take_a_tenth_of_the_time(tmp_path: Path, bench: Bench, peer: Peer) -> None:
    group(peer, "CG")
    peer.ask(SEND, send_ext(), b"a")
    bench.run_jobs()
    commit(peer, "CG", "T", 0, 1)
    bench.clock.advance(5_000)
    bench.run_jobs()
    path = tmp_path / "config" / "consumerOffset.json"

    def saves(took_ms: int, seconds: int) -> int:
        """How often offsets that change all the time are saved, and each save takes so long."""
        count = 0
        for second in range(seconds):
            commit(peer, "CG", "T", 0, second)
            bench.clock.advance(1_000)
            for job in bench.broker.jobs():
                before = path.stat().st_ino
                job.run()
                if path.stat().st_ino != before:
                    bench.clock.advance(took_ms)
                    count += 1
                job.done()
        return count

    assert saves(0, 50) == 10
    assert 3 <= saves(1_000, 50) <= 6, "once in some ten seconds"
    assert 3 <= saves(30_000, 200) <= 5, "a minute is the longest wait"


def test_the_backup_of_a_file_that_is_missing_is_used_and_that_is_said(
    tmp_path: Path, bench: Bench, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    group(peer, "CG")
    peer.ask(SEND, send_ext(), b"a")
    commit(peer, "CG", "T", 0, 1)
    bench.close()
    path = tmp_path / "config" / "consumerOffset.json"
    path.rename(path.with_name("consumerOffset.json.bak"))
    with caplog.at_level(logging.WARNING):
        bench.open()
    assert bench.broker.state.offsets.query("CG", "T", 0) == 1
    assert [record.getMessage() for record in caplog.records if "consumerOffset" in record.getMessage()] == [
        f"{path} is missing: its .bak is used, and the last save may be lost"
    ]


@pytest.mark.parametrize("with_bak", [True, False])
def test_an_older_table_of_topics_hides_no_stored_message(tmp_path: Path, with_bak: bool) -> None:
    """And cleaning up unused topics removes none of its queues. What was deleted stays deleted."""
    bench = Bench(tmp_path)
    peer, config = bench.peer(), tmp_path / "config"
    for name in ("Old", "Doomed", "Shrunk"):
        create(peer, name)
        assert peer.ask(SEND, send_ext(name, 2), b"x").code == 0
    bench.run_jobs()
    older = {path.name: path.read_bytes() for path in config.iterdir() if path.name.startswith("topics")}
    create(peer, "Young")
    create(peer, "Empty")
    assert peer.ask(SEND, send_ext("Young", 1), b"acknowledged").code == 0
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Doomed"}).code == 0
    assert create(peer, "Shrunk", readQueueNums="1", writeQueueNums="1") == 0
    bench.close()
    newest = json.loads((config / "topics.json").read_bytes())
    if with_bak:
        for name, data in older.items():
            (config / name).write_bytes(data)
    else:
        del newest["topicConfigTable"]["Young"]
        (config / "topics.json").write_text(json.dumps(newest))
        (config / "topics.json.bak").unlink()
    found = found_in_tables(OfflineStore(bench.store_config), bench.clock)
    expected = [*([("config.older", False)] if with_bak else []), ("config.topics", True)]
    assert [(each.kind, "Young (2 queues)" in each.text) for each in found] == expected
    bench.open()
    assert [each.text for each in bench.store.damages.found] == [each.text for each in found]
    peer = bench.peer()
    assert peer.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    answer = peer.pull("Young", 1)
    assert (answer.code, bytes(answer.body).count(b"acknowledged")) == (0, 1)
    assert bench.store.offsets.max_offset("Doomed", 2) == 0
    if not with_bak:
        shrunk = bench.broker.state.topics.get("Shrunk")
        assert shrunk is not None
        assert shrunk.read_queue_nums == 1, "an operator has said so"
    bench.reopen()
    assert bench.store.damages.found == []


def test_newer_tables_beside_an_older_log_are_reported(tmp_path: Path, bench: Bench) -> None:
    bench.close()
    older = tmp_path.with_name("older")
    shutil.copytree(tmp_path, older)
    bench.open()
    peer = bench.peer()
    create(peer, "T")
    assert peer.ask(SEND, send_ext("T", 0), b"x" * 1000).code == 0
    bench.flush()
    create(peer, "T2")
    bench.close()
    shutil.copytree(tmp_path / "config", older / "config", dirs_exist_ok=True)
    shutil.copy(tmp_path / "mqspark.tables", older)
    bench.directory = older
    bench.open()
    assert [each.kind for each in bench.store.damages.found] == ["config.ahead"]


def test_a_slave_cleans_up_no_topic_before_it_knows_its_masters(tmp_path: Path, bench: Bench) -> None:
    """Its own table may be an older one."""
    assert bench.peer().ask(SEND, send_ext("T", 2), b"x").code == 0
    bench.close()
    (tmp_path / "config/topics.json").write_text('{"topicConfigTable":{}}')
    bench.settings = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
    bench.open()
    assert bench.peer().ask(RequestCode.CLEAN_UNUSED_TOPIC).code == ResponseCode.SYSTEM_BUSY
    assert bench.store.offsets.max_offset("T", 2) == 1


@pytest.mark.parametrize("lost", ["both", "last save", "all of config"])
def test_topics_of_stored_messages_outlive_their_table(tmp_path: Path, lost: str) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    create(peer, "Old")
    bench.run_jobs()
    create(peer, "Batch", attributes="+queue.type=BatchCQ")
    create(peer, "New")
    bench.run_jobs()
    assert peer.ask(SEND, send_ext("New", 2), b"acknowledged").code == 0
    assert peer.ask(SEND, send_ext("Batch", 0), b"too").code == 0
    bench.close()
    path = tmp_path / "config" / "topics.json"
    older = json.loads(path.with_name("topics.json.bak").read_bytes())
    for name in ("New", "Batch"):
        older["topicConfigTable"].pop(name, None)
    path.with_name("topics.json.bak").write_text(json.dumps(older))
    if lost == "last save":
        path.write_text("{")
    elif lost == "both":
        path.unlink()
        path.with_name("topics.json.bak").unlink()
    else:
        shutil.rmtree(tmp_path / "config")
    bench.open()
    said = [damage for damage in bench.store.damages.found if damage.kind == "config.topics"]
    assert len(said) == 1
    assert "Batch (1 queues), New (3 queues)" in said[0].text
    peer = bench.peer()
    answer = peer.pull("New", 2)
    assert (answer.code, bytes(answer.body).count(b"acknowledged")) == (0, 1)
    batch = bench.broker.state.topics.get("Batch")
    assert batch is not None
    assert batch.inner_batch
    assert ("Old" in bench.broker.state.topics) == (lost == "last save")
    bench.reopen()
    assert "New" in bench.broker.state.topics
    assert bench.store.damages.found == []


@pytest.mark.parametrize("with_backup", [False, True])
def test_counts_of_timer_messages_that_cannot_be_read_stop_no_start(
    tmp_path: Path, with_backup: bool
) -> None:
    bench = Bench(tmp_path, store_settings={"timer_wheel_enable": True})
    timed = encode_properties({"TIMER_DELAY_SEC": "100"}).decode()
    assert bench.peer().ask(SEND, send_ext(properties=timed), b"later").code == 0
    bench.run_for(3_000)
    assert bench.broker.timers.metrics.counts() == {"T": 1}
    bench.close()
    path = tmp_path / "config" / "timermetrics"
    backup = path.with_name("timermetrics.bak")
    if with_backup:
        backup.write_bytes(path.read_bytes())
    else:
        backup.unlink(missing_ok=True)
    path.write_text('{"timingCount":{"T":')
    bench.open()
    assert bench.broker.timers.metrics.counts() == ({"T": 1} if with_backup else {})
    outcome = "healed" if with_backup else "lost"
    assert bench.store.damages.counts["config.unreadable", outcome] == 1
    bench.run_for(110_000, 1_000)
    assert [message.body for message in bench.records("T")] == [b"later"]
    bench.reopen()
    assert not bench.store.damages.counts
