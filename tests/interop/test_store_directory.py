"""One store directory, served in turn by mqspark's store and by an unmodified RocketMQ broker."""

import os
import random
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mqspark.base.clock import SystemClock
from mqspark.message import MessageExt, encode_host
from mqspark.record.record import PendingRecord, decode_records, tags_code
from mqspark.store import MessageStore, StoreConfig
from tests.interop.directories import SETTINGS, Mover, View, log_bytes, make_directory
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.support.clusters import Cluster, mqspark_broker
from tests.support.processes import free_port
from tests.support.remoting import GET_MAX_OFFSET, GET_MIN_OFFSET, RawConnection
from tests.support.store_tools import checkpoint, crash, drain, flush, leave
from tests.support.storefiles import save_table, segments_of, topic_config

SIZES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 2000}
QUEUES = [(topic, queue_id) for topic in ("Ours", "Mixed") for queue_id in range(3)]


def our_store(root: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=2000,
    )
    return MessageStore(config, SystemClock(), store_host=encode_host("127.0.0.1", 10911))


def fill(store: MessageStore, count: int, rng: random.Random) -> None:
    now_ms = SystemClock().now_ms()
    for number in range(count):
        topic, queue_id = rng.choice(QUEUES)
        properties = b"TAGS\x01%s\x02KEYS\x01k%d\x02" % (rng.choice([b"red", b"blue"]), number)
        body = rng.randbytes(rng.choice([1, 100, 3000]))
        host = rng.choice([encode_host("10.0.0.1", 5), encode_host("fd00::1", 5)])
        store.appender.put(
            PendingRecord(
                topic=topic,
                queue_id=queue_id,
                body=body,
                properties=properties,
                tags_code=tags_code(properties),
                born_timestamp_ms=now_ms,
                born_host=host,
                flag=number,
            )
        )
        if rng.random() < 0.1:
            flush(store)
    flush(store)


def our_view(store: MessageStore) -> dict[tuple[str, int], list[MessageExt]]:
    return {queue: drain(store, *queue) for queue in QUEUES}


def their_view(broker: Cluster) -> dict[tuple[str, int], list[MessageExt]]:
    found: dict[tuple[str, int], list[MessageExt]] = {}
    with RawConnection(broker.broker) as connection:
        for topic, queue_id in QUEUES:
            where = {"topic": topic, "queueId": queue_id}
            low = int(connection.request(GET_MIN_OFFSET, **where).ext["offset"])
            high = int(connection.request(GET_MAX_OFFSET, **where).ext["offset"])
            messages: list[MessageExt] = []
            while low < high:
                reply = connection.pull(topic, queue_id, low, group="g")
                assert reply.code in (0, 20), reply
                messages += decode_records(reply.body, decompress=False) if reply.code == 0 else []
                low = int(reply.ext["nextBeginOffset"])
            found[topic, queue_id] = messages
    return found


def send(broker: Cluster, count: int) -> None:
    with RawConnection(broker.broker) as connection:
        for number in range(count):
            topic, queue_id = QUEUES[number % len(QUEUES)]
            connection.send(topic, b"from java %d" % number * 20, queue_id, "TAGS\x01red\x02")


def new_directory(folder: Path) -> Path:
    root = folder / "broker" / "store"
    topics = {topic: topic_config(topic, 3, attributes={}) for topic in ("Ours", "Mixed")}
    save_table(root, "topics.json", topicConfigTable=topics)
    return root


def ends(broker: Cluster) -> dict[tuple[str, int], tuple[int, int]]:
    """Min and max offset of every queue."""
    with RawConnection(broker.broker) as connection:
        return {
            (topic, queue_id): (
                int(connection.request(GET_MIN_OFFSET, topic=topic, queueId=queue_id).ext["offset"]),
                int(connection.request(GET_MAX_OFFSET, topic=topic, queueId=queue_id).ext["offset"]),
            )
            for topic, queue_id in QUEUES
        }


@pytest.mark.slow("real brokers start at every stop; the one of every kind of message is the fast twin")
@pytest.mark.parametrize("kill", [pytest.param(False, id="clean stop"), pytest.param(True, id="kill")])
def test_a_directory_moves_both_ways(jars: Jars, tmp_path: Path, kill: bool) -> None:
    rng = random.Random(1)
    root = new_directory(tmp_path)
    store = our_store(root)
    store.open()
    fill(store, 1500, rng)
    checkpoint(store)
    fill(store, 700, rng)
    with rocketmq_namesrv(jars, tmp_path / "namesrv") as namesrv:
        for _ in range(2):
            ours = our_view(store)
            end = store.log.position
            leave(store, killed=kill)
            before = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
            with rocketmq_broker(
                jars, tmp_path / "broker", namesrv, settings=SIZES, stop_signal=_stop_signal(kill)
            ) as broker:
                assert their_view(broker) == ours
                send(broker, 60)
                theirs = their_view(broker)
            assert sum(map(len, theirs.values())) == sum(map(len, ours.values())) + 60
            joined = b"".join((root / "commitlog" / name).read_bytes() for name in sorted(before))
            assert joined[:end] == b"".join(before[name] for name in sorted(before))[:end], "nothing was cut"
            store = our_store(root)
            report = store.open()
            assert (report.damaged, report.lost_entries, report.ignored_records) == ([], 0, 0)
            assert report.clean is not kill
            assert our_view(store) == theirs
            fill(store, 300, rng)
    crash(store)


@pytest.mark.slow("real brokers start at every stop")
def test_a_directory_whose_beginning_was_deleted(jars: Jars, tmp_path: Path) -> None:
    """Queue Mixed/2 has nothing left: its offsets go on all the same, on both sides."""
    rng = random.Random(2)
    root = new_directory(tmp_path)
    store = our_store(root)
    store.config.clean_resource_interval = 1
    store.open()
    idle = QUEUES.pop()
    try:
        now_ms = SystemClock().now_ms()
        for _ in range(150):
            store.appender.put(
                PendingRecord(
                    topic=idle[0],
                    queue_id=idle[1],
                    body=b"soon gone",
                    born_timestamp_ms=now_ms,
                    born_host=encode_host("10.0.0.1", 5),
                )
            )
        fill(store, 4000, rng)
    finally:
        QUEUES.append(idle)
    segments = segments_of(root)
    for path in segments[:2]:
        os.utime(path, (0, 0))
    checkpoint(store)
    store.clean_expired()
    for _ in range(3):
        checkpoint(store)
    assert segments_of(root) == segments[2:]
    assert len(segments) > 3
    ours = our_view(store)
    offsets = {
        queue: (store.offsets.min_offset(*queue), store.offsets.max_offset(*queue)) for queue in QUEUES
    }
    assert offsets[idle] == (150, 150)
    assert all(low > 100 for low, _ in offsets.values())
    crash(store)
    with (
        rocketmq_namesrv(jars, tmp_path / "namesrv") as namesrv,
        rocketmq_broker(
            jars, tmp_path / "broker", namesrv, settings=SIZES, stop_signal=signal.SIGTERM
        ) as broker,
    ):
        assert their_view(broker) == ours
        assert ends(broker) == offsets
        send(broker, 60)
        theirs = their_view(broker)
        offsets = ends(broker)
    assert offsets[idle] == (150, 160)
    store = our_store(root)
    report = store.open()
    assert (report.clean, report.damaged, report.lost_entries, report.ignored_records) == (True, [], 0, 0)
    assert our_view(store) == theirs
    assert {
        queue: (store.offsets.min_offset(*queue), store.offsets.max_offset(*queue)) for queue in QUEUES
    } == offsets
    store.close()


def _stop_signal(kill: bool) -> signal.Signals:
    return signal.SIGKILL if kill else signal.SIGTERM


THERE_AND_BACK = pytest.mark.slow("a real broker starts three times; once there and back is the fast twin")


@pytest.mark.parametrize(
    ("stops", "kill"),
    [
        pytest.param([True, False, True], True, id="once"),
        pytest.param([True, False] * 3, True, id="kill", marks=THERE_AND_BACK),
        pytest.param([True, False] * 3, False, id="clean stop", marks=THERE_AND_BACK),
    ],
)
def test_every_kind_of_message_moves_back_and_forth(
    jars: Jars, tmp_path: Path, stops: list[bool], kill: bool
) -> None:
    """There and back between our broker and theirs, with writes at every stop; nothing is ever cut."""
    folder = tmp_path / "broker"
    store = make_directory(folder)
    mover = Mover()
    # Nobody needs to find these brokers: the address is one where nothing listens.
    namesrv = f"127.0.0.1:{free_port()}"
    view, log = View(), b""
    for ours in stops:
        broker: AbstractContextManager[Cluster]
        if ours:
            broker = mqspark_broker(folder, namesrv, SETTINGS, stop_signal=_stop_signal(kill))
        else:
            broker = rocketmq_broker(
                jars, folder, namesrv, settings=SETTINGS, stop_signal=_stop_signal(kill), registered=False
            )
        with broker as cluster:
            before = mover.view(cluster)
            if view.count:
                assert before.differences(view) == {}
            mover.write(cluster, 12, commit=ours or not kill)
            view = mover.view(cluster)
        assert view.count > before.count
        assert log_bytes(store).startswith(log), "nothing that was there is cut or changed"
        log = log_bytes(store)


def _damaged(store: Path, rng: random.Random) -> list[str]:
    """Damage to much of what follows from the log, and to tables that have a backup; what was done."""
    done = []
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        name, data = path.relative_to(store), path.read_bytes()
        kinds = ["gone", "empty", "cut", "flipped", "random", "zeros", "long"]
        if name.parts[0] == "config":
            kinds = kinds[:3] if path.with_name(path.name + ".bak").exists() and rng.random() < 0.3 else []
        elif name.parts[0] in ("commitlog", "rocksdbstore", "lock") or rng.random() < 0.4:
            kinds = []
        elif name.parts[0] == "consumequeue_ext" and len(list(path.parent.iterdir())) == 1:
            kinds = ["flipped", "random", "zeros"]  # its length is told by nothing else
        if not kinds:
            continue
        kind = rng.choice(kinds)
        content = bytearray(data)
        for _ in range(20 if content else 0):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        if kind == "gone":
            path.unlink()
        else:
            path.write_bytes(
                {
                    "empty": b"",
                    "cut": data[: rng.randrange(len(data) + 1)],
                    "flipped": bytes(content),
                    "random": rng.randbytes(len(data)),
                    "zeros": bytes(len(data)),
                    "long": data + rng.randbytes(1000),
                }[kind]
            )
        done.append(f"{name} {kind}")
    return done


@pytest.mark.slow(
    "a real broker starts three times; one damage at a time is the fast twin, in tests/security/store"
)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_damaged_beside_the_log_is_made_again_for_both(jars: Jars, tmp_path: Path, seed: int) -> None:
    """Our broker heals it after each kill, and the real one serves the same."""
    folder, rng, mover = tmp_path / "broker", random.Random(seed), Mover()
    store = make_directory(folder)
    namesrv = f"127.0.0.1:{free_port()}"

    def ours() -> AbstractContextManager[Cluster]:
        return mqspark_broker(folder, namesrv, SETTINGS, stop_signal=signal.SIGKILL)

    def theirs() -> AbstractContextManager[Cluster]:
        return rocketmq_broker(
            jars, folder, namesrv, settings=SETTINGS, stop_signal=signal.SIGKILL, registered=False
        )

    with ours() as cluster:
        mover.write(cluster, 12, commit=True)
    with theirs() as cluster:
        mover.write(cluster, 12, commit=False)
        view = mover.view(cluster)
    for _ in range(2):
        done = _damaged(store, rng)
        with ours() as cluster:
            assert mover.view(cluster).differences(view) == {}, done
            mover.write(cluster, 6, commit=True)
            view = mover.view(cluster)
        with theirs() as cluster:
            assert mover.view(cluster).differences(view) == {}, done
            mover.write(cluster, 6, commit=False)
            view = mover.view(cluster)
