"""Directories of real RocketMQ brokers with queues and tables in RocksDB: ours refuses them, and serves every
message at its offset after the conversion that its error names."""

import json
import signal
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqspark.record.record import decode_records
from mqspark.store import StoreConfig
from mqspark.store.tools.offlinestore import OfflineStore
from tests.interop import jars as jar_cache
from tests.interop.jars import Jars
from tests.interop.rocketmq import java_command, rocketmq_broker, rocketmq_namesrv
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, mqspark_broker, write_conf
from tests.support.maven import or_skip
from tests.support.processes import HOST, free_port, mqspark_command
from tests.support.remoting import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    RawConnection,
)
from tests.support.storefiles import segments_of
from tests.support.waiting import eventually

TOPIC, SILENT, GROUP, QUEUES = "InRocksDB", "Silent", "readers", 2
SEGMENT_BYTES = 1 << 18
SETTINGS = {
    "brokerName": "rocks",
    "brokerClusterName": "Rocks",
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "timerWheelEnable": False,
    "brokerFastFailureEnable": False,
}
ROCKS = {"storeType": "defaultRocksDB"}
TABLES = {
    "topics": "topics.json",
    "subscriptionGroups": "subscriptionGroup.json",
    "consumerOffsets": "consumerOffset.json",
}
MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"


@dataclass
class Directory:
    """A store, and who may serve it."""

    folder: Path
    jars: Jars
    newest: Jars

    def __post_init__(self) -> None:
        self.namesrv = f"127.0.0.1:{free_port()}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def theirs(
        self, more: Mapping[str, object], *, registered: bool = False
    ) -> AbstractContextManager[Cluster]:
        return rocketmq_broker(
            self.jars,
            self.folder,
            self.namesrv,
            settings={**SETTINGS, **more},
            stop_signal=signal.SIGTERM,
            registered=registered,
        )

    def ours(self) -> AbstractContextManager[Cluster]:
        return mqspark_broker(self.folder, self.namesrv, SETTINGS)

    def refusal(self) -> str:
        """What our broker says when it does not start."""
        conf = write_conf(
            self.folder / "refused.conf",
            {
                **SETTINGS,
                "listenPort": free_port(neighbours=2),
                "httpPort": 0,
                "bindAddress": HOST,
                "storePathRootDir": self.store,
            },
        )
        done = subprocess.run(
            [*mqspark_command(), "broker", "run", "-c", str(conf)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode not in (0, 3), done
        assert "Traceback" not in done.stderr
        return done.stderr

    def fsck(self, *options: str) -> dict[str, int]:
        done = subprocess.run(
            [*mqspark_command(), "store", "fsck", str(self.store), "-o", "json", *options],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        found: dict[str, int] = json.loads(done.stdout)["counts"]
        return found

    def export_tables(self) -> None:
        for name, table in TABLES.items():
            config = self.store / "config"
            command = java_command(
                self.newest, MQADMIN, self.folder,
                "rocksDBConfigToJson", "-p", str(config), "-t", name, "-e", str(config / table),
                heap_mib=128, options=[],
            )  # fmt: skip
            subprocess.run(command, capture_output=True, check=True, timeout=120)
            assert (config / table).exists()

    def tree(self) -> list[str]:
        return sorted(str(path.relative_to(self.store)) for path in self.store.rglob("*"))


@pytest.fixture(params=["5.5.0", jar_cache.OLD_SERVER])
def directory(request: pytest.FixtureRequest, jars: Jars, tmp_path: Path) -> Directory:
    used = jars if request.param == "5.5.0" else or_skip(lambda: jar_cache.fetch_server(request.param))
    return Directory(tmp_path, used, jars)


def send(broker: Cluster, topic: str, numbers: range) -> dict[tuple[str, int], list[bytes]]:
    sent: dict[tuple[str, int], list[bytes]] = {}
    with RawConnection(broker.broker) as connection:
        for number in numbers:
            queue_id = number % QUEUES
            body = b"%s %04d " % (topic.encode(), number) * 40
            reply = connection.send(topic, body, queue_id, f"KEYS\x01k{number}\x02")
            queue = sent.setdefault((topic, queue_id), [])
            queue.append(body)
            assert int(reply.ext["queueOffset"]) == len(queue) - 1
    return sent


def commit(broker: Cluster) -> None:
    with RawConnection(broker.broker) as connection:
        where = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1}
        assert connection.request(UPDATE_CONSUMER_OFFSET, commitOffset=7, **where).code == 0


def fill(broker: Cluster, count: int) -> dict[tuple[str, int], list[bytes]]:
    """Messages of a topic and of one that falls silent, and an offset of a group."""
    for topic in (TOPIC, SILENT):
        create_topic(broker, topic, QUEUES)
    create_group(broker, GROUP)
    sent = send(broker, SILENT, range(5)) | send(broker, TOPIC, range(count))
    commit(broker)
    return sent


def check(broker: Cluster, sent: dict[tuple[str, int], list[bytes]], log_begin: int = 0) -> None:
    """The ends, every message that the log has at its offset, and the group's offset."""
    with RawConnection(broker.broker) as connection:
        for (topic, queue_id), expected in sent.items():
            where = {"topic": topic, "queueId": queue_id}
            end = int(connection.request(GET_MAX_OFFSET, **where).ext["offset"])
            assert end == len(expected), (topic, queue_id)
            offset = int(connection.request(GET_MIN_OFFSET, **where).ext["offset"])
            assert log_begin or not offset
            while offset < end:
                reply = connection.pull(topic, queue_id, offset, group="g")
                assert reply.code == 0, reply
                for message in decode_records(reply.body):
                    assert (message.queue_offset, message.body) == (offset, expected[offset])
                    offset += 1
        where = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1}
        reply = connection.request(QUERY_CONSUMER_OFFSET, **where)
        assert reply.ext["offset"] == "7", reply


@pytest.mark.slow("real brokers start, and JVMs for the tables")
@pytest.mark.timeout(900)
def test_a_whole_log_is_converted_here(directory: Directory) -> None:
    with directory.theirs(ROCKS) as broker:
        sent = fill(broker, 30)
    error = directory.refusal()
    assert "in no files" in error
    assert "fsck --repair" in error
    assert all(f"{name} {table}" in error for name, table in TABLES.items())
    assert {"rocksdb.queues", "rocksdb.tables"} <= directory.fsck().keys()
    directory.export_tables()
    directory.fsck("--repair")
    assert directory.fsck() == {}
    with directory.ours() as broker:
        check(broker, sent)


@pytest.mark.slow("real brokers start, and JVMs for the tables")
@pytest.mark.timeout(900)
def test_a_log_without_its_begin_is_copied_by_a_slave(directory: Directory) -> None:
    with directory.theirs(ROCKS) as broker:
        sent = fill(broker, 1500)
    segments = segments_of(directory.store)
    segments[0].unlink()  # with all messages of the silent topic
    error = directory.refusal()
    assert f"the log begins at {SEGMENT_BYTES}" in error
    assert "brokerRole=SLAVE" in error
    copy = directory.folder / "copy"
    with rocketmq_namesrv(directory.newest, directory.folder / "namesrv") as directory.namesrv:
        with directory.theirs(ROCKS, registered=True) as master:
            slave = {**SETTINGS, "brokerId": 1, "brokerRole": "SLAVE"}
            with mqspark_broker(copy, directory.namesrv, slave) as broker:
                eventually(lambda: has_all(broker, master, sent), "everything at the slave", 60)
    with mqspark_broker(copy, directory.namesrv, SETTINGS) as broker:
        check(broker, sent, SEGMENT_BYTES)


def has_all(slave: Cluster, master: Cluster, sent: dict[tuple[str, int], list[bytes]]) -> bool:
    """The ends of queues, and the offset of the group."""
    with RawConnection(slave.broker) as connection, RawConnection(master.broker) as first:
        for topic, queue_id in sent:
            where = {"topic": topic, "queueId": queue_id}
            end, expected = (each.request(GET_MAX_OFFSET, **where).ext for each in (connection, first))
            if end["offset"] != expected["offset"]:
                return False
        where = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1}
        return connection.request(QUERY_CONSUMER_OFFSET, **where).code == 0


@pytest.mark.slow("real brokers start")
@pytest.mark.timeout(900)
def test_what_is_left_after_rocketmq_went_back_to_files_is_let_pass(directory: Directory) -> None:
    with directory.theirs(ROCKS) as broker:
        sent = fill(broker, 30)
    directory.export_tables()
    with directory.theirs({"storeType": "default"}) as broker:
        more = send(broker, "Later", range(4))
    assert (directory.store / "consumequeue/CURRENT").exists()
    with directory.ours() as broker:
        check(broker, sent | more)


LIGHT = {"enableLmq": True, "enableMultiDispatch": True}


@pytest.mark.slow("real brokers start")
@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, ()),
        ({"configManagerVersion": "v2"}, ("config/rdb is newer",)),
        ({**ROCKS, "useSingleRocksDBForAllConfigs": True}, ("config/metadata is newer", "(consumequeue/)")),
        (
            {**ROCKS, "useSeparateStorePathForRocksdbCQ": True},
            ("config/ has topics", "(consumequeue_rocksdb/)"),
        ),
        ({"rocksdbCQDoubleWriteEnable": True, "combineCQUseRocksdbForLmq": True, **LIGHT}, ("light queues",)),
        ({"indexRocksDBEnable": True}, ("rocksdbstore/ has",)),
    ],
    ids=["files", "v2", "single", "separate", "light", "index"],
)
def test_each_place_is_recognised(
    jars: Jars, tmp_path: Path, settings: dict[str, object], found: tuple[str, ...]
) -> None:
    directory = Directory(tmp_path, jars, jars)
    with directory.theirs(settings) as broker:
        fill(broker, 30)
        with RawConnection(broker.broker) as connection:
            connection.send(TOPIC, b"light", 0, "INNER_MULTI_DISPATCH\x01%LMQ%one\x02")
    store = OfflineStore(StoreConfig(store_path_root_dir=str(directory.store)))
    texts = [part.text for part in store.in_rocksdb]
    assert len(texts) == len(found), texts
    assert all(word in text for word, text in zip(found, texts, strict=True)), texts
