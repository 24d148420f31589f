"""A compacted topic in one store directory, served in turn by an unmodified RocketMQ broker and by ours."""

import json
import random
import signal
import struct
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mqspark.record.record import decode_record
from tests.interop.directories import records_of
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker
from tests.support.clusters import Cluster, mqspark_broker
from tests.support.processes import free_port, mqspark_command, set_options
from tests.support.remoting import GET_MAX_OFFSET, GET_MIN_OFFSET, RawConnection
from tests.support.storefiles import save_table, segments_of, topic_config
from tests.support.waiting import eventually

TOPIC, QUEUES = "Compacted", (0, 1)
SIZES = {"compactionMappedFileSize": 1 << 16, "compactionCqMappedFileSize": 4600}
SEGMENT_BYTES = 1 << 19
SETTINGS = {
    "brokerName": "compacting",
    "brokerClusterName": "Compacting",
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "compactionScheduleInternal": 1000,
    "brokerFastFailureEnable": False,
    "timerWheelEnable": False,
    **SIZES,
}
KEYS = 40

Records = dict[int, bytes]
"""Queue offset → record without the place that it says it has: in the log, or in RocketMQ's compaction log."""


def make_directory(folder: Path) -> Path:
    topic = topic_config(TOPIC, len(QUEUES), attributes={"cleanup.policy": "COMPACTION"})
    save_table(folder / "store", "topics.json", topicConfigTable={TOPIC: topic})
    return folder / "store"


def fill(broker: Cluster, rng: random.Random, count: int) -> None:
    ends: dict[int, int] = {}
    with RawConnection(broker.broker) as connection:
        for number in range(count):
            for queue_id in QUEUES:
                body = b"value %d" % number + rng.randbytes(rng.choice([10, 300, 900]))
                properties = f"TAGS\x01{rng.choice('AB')}\x02KEYS\x01k{rng.randrange(KEYS)}\x02"
                reply = connection.send(TOPIC, body, queue_id, properties)
                ends[queue_id] = int(reply.ext["queueOffset"]) + 1
        # RocketMQ acknowledges messages before they are in their queues.
        eventually(lambda: {queue_id: end_of(connection, queue_id) for queue_id in QUEUES} == ends)


def end_of(connection: RawConnection, queue_id: int) -> int:
    return int(connection.request(GET_MAX_OFFSET, topic=TOPIC, queueId=queue_id).ext["offset"])


def view(broker: Cluster) -> dict[int, Records]:
    """What pulls from 0 on bring; they go on to the end without a step back."""
    found: dict[int, Records] = {}
    with RawConnection(broker.broker) as connection:
        for queue_id in QUEUES:
            where = {"topic": TOPIC, "queueId": queue_id}
            if broker.kind == "mqspark":  # a real one looks at the log a minute after its start
                assert connection.request(GET_MIN_OFFSET, **where).ext["offset"] == "0"
            end = end_of(connection, queue_id)
            records = found[queue_id] = {}
            offset = 0
            while offset < end:
                reply = connection.pull(TOPIC, queue_id, offset, group="g")
                # Ours says so where nothing is kept of what the log has no longer.
                assert (
                    reply.remark
                    in {"rocketmq": ["FOUND"], "mqspark": ["FOUND", "NO_MATCHED_MESSAGE"]}[broker.kind]
                ), (offset, reply)
                for record in records_of(reply.body) if reply.code == 0 else []:
                    (at,) = struct.unpack_from(">q", record, 20)
                    assert offset <= at
                    records[at] = record[:28] + record[36:]
                following = int(reply.ext["nextBeginOffset"])
                assert offset < following
                offset = following
            assert max(records) + 1 == end == offset
    return found


def newest(records: Records) -> dict[str, bytes]:
    """Key → its last record."""
    return {_key(records[offset]): records[offset] for offset in sorted(records)}


def _key(record: bytes) -> str:
    key = decode_record(record[:28] + bytes(8) + record[28:]).keys
    assert key is not None
    return key


def newest_of(found: dict[int, Records]) -> dict[int, dict[str, bytes]]:
    return {queue_id: newest(records) for queue_id, records in found.items()}


def wait_until_compacted(store: Path, to: int) -> None:
    """Both queues, at least to this offset."""
    path = store / "compaction/position-checkpoint"
    deadline = time.monotonic() + 60
    while True:
        table = json.loads(path.read_text())["queueOffsetMap"] if path.exists() else {}
        if len(table) == len(QUEUES) and min(table.values()) >= to:
            return
        assert time.monotonic() < deadline, table
        time.sleep(0.1)


def expire(store: Path, count: int) -> None:
    """So many segments of the beginning are no more: what they had is in compaction/ alone."""
    segments = segments_of(store)
    assert segments[-1].name >= f"{count * SEGMENT_BYTES:020d}"
    assert (store / "commitlog" / f"{count * SEGMENT_BYTES:020d}").read_bytes().strip(b"\0")
    for segment in segments:
        if int(segment.name) < count * SEGMENT_BYTES:
            segment.unlink()


def run(*arguments: str) -> None:
    done = subprocess.run([*mqspark_command(), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow("real brokers start at every stop, and Spark")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kill", [pytest.param(False, id="clean stop"), pytest.param(True, id="kill")])
def test_a_compacted_topic_moves_back_and_forth(jars: Jars, tmp_path: Path, kill: bool) -> None:
    pytest.importorskip("pyspark")
    folder = tmp_path / "broker"
    store = make_directory(folder)
    namesrv = f"127.0.0.1:{free_port()}"
    stop_signal = signal.SIGKILL if kill else signal.SIGTERM
    rng = random.Random(7)

    def theirs() -> AbstractContextManager[Cluster]:
        return rocketmq_broker(
            jars, folder, namesrv, settings=SETTINGS, stop_signal=stop_signal, registered=False
        )

    def ours() -> AbstractContextManager[Cluster]:
        return mqspark_broker(folder, namesrv, SETTINGS, stop_signal=stop_signal)

    with theirs() as broker:
        fill(broker, rng, 1500)
        wait_until_compacted(store, 1300)
        expected = newest_of(view(broker))
    assert all(len(values) == KEYS for values in expected.values())
    expire(store, 2)
    with ours() as broker:
        assert newest_of(view(broker)) == expected
    run("job", "run", "compact", "--store", str(store))
    with ours() as broker:
        found = view(broker)
        assert found == {queue_id: _by_offset(values) for queue_id, values in expected.items()}
        fill(broker, rng, 50)
        found = view(broker)
    run(
        "store",
        "to-rocketmq",
        str(store),
        *set_options(SIZES),
    )
    with theirs() as broker:
        again = view(broker)
        assert newest_of(again) == newest_of(found)
        fill(broker, rng, 700)
        expected = newest_of(view(broker))
    expire(store, 4)  # with what ours had stored
    with ours() as broker:
        assert newest_of(view(broker)) == expected
    run("job", "run", "compact", "--store", str(store))
    with ours() as broker:
        assert view(broker) == {queue_id: _by_offset(values) for queue_id, values in expected.items()}


def _by_offset(values: dict[str, bytes]) -> Records:
    return {struct.unpack_from(">q", record, 20)[0]: record for record in values.values()}
