"""A broker serves from the archive what its log no longer has: to pulls, lookups, pops; it never skips a message."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqspark import AdminClient, LitePullConsumer, Message, PopConsumer, Producer, PushConsumer
from mqspark.client.blocking import BlockingClient
from mqspark.message import MessageExt, MessageQueue
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import PullMessageResponseHeader, pull_header
from mqspark.record.record import decode_records
from mqspark.store.disk.notes.archivednote import ARCHIVED, encode_archived
from mqspark.testing import Broker
from tests.support.archive_tools import archive_log
from tests.support.waiting import eventually

EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))
SETTINGS = {
    "mappedFileSizeCommitLog": 65_536,
    "fileReservedTime": 0,
    "deleteWhen": EVERY_HOUR,
    "cleanResourceInterval": 100,
    "deleteArchivedOnly": True,
    "archiveRefreshInterval": 60_000,
    "enablePropertyFilter": True,
}
TOPIC = "Old"
FIRST = "CONSUME_FROM_FIRST_OFFSET"
COUNT = 800


def settings(root: Path, **more: Any) -> dict[str, Any]:
    return SETTINGS | {"archiveUrl": str(root / "table")} | more


def fill(broker: Broker, numbers: range) -> None:
    chance = random.Random(7)
    with Producer(broker.namesrv, group="fill", compress_from_bytes=2_000) as producer:
        for number in numbers:
            body = str(number).encode().ljust(chance.randrange(40, 1_200), b".")
            if number % 50 == 0:
                body = body.ljust(5_000, b"c")
            message = Message.of(
                TOPIC,
                body,
                keys=f"k{number}",
                tags="ab"[number % 2],
                properties={"n": str(number), "ü": "ß\t"},
            )
            message = replace(message, flag=number % 3)
            producer.send(message, queue=MessageQueue(TOPIC, "dev", number % 2))


def archive(broker: Broker, root: Path, low: int = 0) -> int:
    """All that the log has; what is archived leaves it."""
    end = archive_log(broker.store_path, str(root / "table"), low=low)
    (broker.store_path / ARCHIVED).write_bytes(encode_archived(end))
    return end


def log_begin(broker: Broker, queue_id: int = 0) -> int:
    store = broker.apps[0].store
    assert store is not None
    return broker.call(lambda: store.offsets.log_bounds(TOPIC, queue_id)[0])


def pull(client: BlockingClient, address: str, queue_id: int, offset: int) -> Command:
    header = pull_header("check", MessageQueue(TOPIC, "dev", queue_id), offset, max_messages=32)
    return client.request(address, RequestCode.PULL_MESSAGE, header, accept=tuple(ResponseCode))


def read_all(broker: Broker, queue_id: int, start: int = 0) -> list[MessageExt]:
    found: list[MessageExt] = []
    client = BlockingClient(broker.namesrv)
    try:
        offset = start
        while True:
            answer = pull(client, broker.address, queue_id, offset)
            if "still being fetched" in (answer.remark or ""):
                time.sleep(0.05)
                continue
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return found
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer.remark
            if answer.code == ResponseCode.SUCCESS:
                found += decode_records(answer.body)
            offset = answer.header(PullMessageResponseHeader).next_begin_offset
    finally:
        client.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiered")


@pytest.fixture(scope="module")
def before(root: Path) -> dict[int, list[MessageExt]]:
    """What the broker of ``broker`` served before its log expired."""
    return {}


@pytest.fixture(scope="module")
def broker(root: Path, before: dict[int, list[MessageExt]]) -> Iterator[Broker]:
    with Broker(store=root / "store", settings=settings(root)) as running:
        fill(running, range(COUNT))
        for queue_id in (0, 1):
            before[queue_id] = read_all(running, queue_id)
        archive(running, root)
        eventually(lambda: log_begin(running) > 100 and log_begin(running, 1) > 100, "the log expired")
        yield running


def shown(message: MessageExt) -> dict[str, Any]:
    """Everything that a consumer sees."""
    names = ("topic", "queue_id", "queue_offset", "physical_offset", "body", "flag", "born_timestamp_ms")
    more = (
        "born_host",
        "store_timestamp_ms",
        "store_host",
        "reconsume_times",
        "offset_message_id",
        "sys_flag",
    )
    found = {name: getattr(message, name) for name in (*names, *more)}
    return found | {"properties": dict(message.properties)}


def test_every_message_is_the_one_it_was(broker: Broker, before: dict[int, list[MessageExt]]) -> None:
    for queue_id in (0, 1):
        now = read_all(broker, queue_id)
        assert len(now) == len(before[queue_id]) == COUNT // 2
        for one, other in zip(now, before[queue_id], strict=True):
            assert shown(one) == shown(other)
        assert [message.queue_offset for message in now] == list(range(COUNT // 2))


def test_the_first_offset_is_that_of_the_archive(broker: Broker, before: dict[int, list[MessageExt]]) -> None:
    client = BlockingClient(broker.namesrv)
    try:
        queue = {"topic": TOPIC, "queueId": "0"}
        assert client.request(broker.address, RequestCode.GET_MIN_OFFSET, queue).ext["offset"] == "0"
        earliest = client.request(broker.address, RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
        assert earliest.ext["timestamp"] == str(before[0][0].store_timestamp_ms)
        answer = pull(client, broker.address, 0, log_begin(broker) + 1)
        assert answer.header(PullMessageResponseHeader).min_offset == 0
        for place in (0, 10, 57, log_begin(broker) - 1, log_begin(broker) + 3):
            time_ms = before[0][place].store_timestamp_ms
            first = next(m.queue_offset for m in before[0] if m.store_timestamp_ms >= time_ms)
            wanted = queue | {"timestamp": str(time_ms)}
            found = client.request(broker.address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, wanted)
            assert found.ext["offset"] == str(first)
        long_ago = queue | {"timestamp": "1000"}
        found = client.request(broker.address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, long_ago)
        assert found.ext["offset"] == "0"
    finally:
        client.close()


@pytest.mark.parametrize("tags", ["a", "*"])
def test_consumers_read_it_from_the_start(broker: Broker, tags: str) -> None:
    got: list[int] = []

    def listen(message: MessageExt) -> None:
        got.append(int(message.properties["n"]))

    wanted = [n for n in range(COUNT) if tags == "*" or "ab"[n % 2] == tags]
    group = f"push-{'all' if tags == '*' else tags}"
    consumer = PushConsumer(broker.namesrv, group=group, listener=listen, consume_from=FIRST)
    consumer.subscribe(TOPIC, tags)
    with consumer:
        eventually(lambda: len(got) >= len(wanted), lambda: f"{len(got)} of {len(wanted)}")
    assert sorted(got) == wanted


def test_a_lite_consumer_seeks_into_it(broker: Broker) -> None:
    queue = MessageQueue(TOPIC, "dev", 1)
    with LitePullConsumer(broker.namesrv, group="lite") as consumer:
        consumer.assign([queue])
        consumer.seek_to_begin(queue)
        first = next(iter(eventually(lambda: consumer.poll(1_000))))
        assert first.queue_offset == 0
        consumer.seek(queue, 77)
        assert next(iter(eventually(lambda: consumer.poll(1_000)))).queue_offset == 77


def test_pops_get_it(broker: Broker) -> None:
    got: set[int] = set()

    def listen(message: MessageExt) -> None:
        got.add(int(message.properties["n"]))

    with AdminClient(broker.namesrv) as admin:
        admin.set_consume_mode(TOPIC, "pops", "POP")
    consumer = PopConsumer(broker.namesrv, group="pops", listener=listen, consume_from=FIRST)
    consumer.subscribe(TOPIC)
    with consumer:
        eventually(lambda: len(got) >= COUNT, lambda: f"{len(got)} of {COUNT}")
    assert got == set(range(COUNT))


def test_sql_filters_look_into_it(broker: Broker) -> None:
    got: set[int] = set()

    def listen(message: MessageExt) -> None:
        got.add(int(message.properties["n"]))

    consumer = PushConsumer(broker.namesrv, group="sql", listener=listen, consume_from=FIRST)
    consumer.subscribe(TOPIC, sql="n < 9")
    with consumer:
        eventually(lambda: len(got) >= 9, lambda: f"{sorted(got)}")
    assert got == set(range(9))


def test_the_cache_is_bounded(broker: Broker) -> None:
    parts = broker.apps[0].parts
    assert parts is not None
    assert parts.archived is not None
    assert 0 < parts.archived.cached_bytes <= parts.core.config.archive_cache_bytes
    files = list((broker.store_path / "mqspark.archivecache").iterdir())
    assert (
        sum(path.stat().st_size for path in files if path.name.startswith("chunk-"))
        == parts.archived.cached_bytes
    )


@pytest.mark.slow("restarts two brokers; the bound itself is looked at above")
def test_a_small_cache_serves_all_the_same(
    root: Path, broker: Broker, before: dict[int, list[MessageExt]]
) -> None:
    """The same archive is read by a second broker of the same name whose log is a copy."""
    broker.shut_down()
    try:
        copied = {"archiveUrl": str(root / "table"), "archiveCacheBytes": 60_000}
        with Broker(store=root / "store", settings=settings(root, **copied)) as small:
            now = read_all(small, 0)
            assert [message.body for message in now] == [message.body for message in before[0]]
            parts = small.apps[0].parts
            assert parts is not None
            assert parts.archived is not None
            assert parts.archived.cached_bytes < 2_000_000
    finally:
        broker.restart()


# --- what must not lose a message ----------------------------------------------------------------------------------


def test_storage_that_fails_is_an_error_and_loses_nothing(root: Path, broker: Broker) -> None:
    """The table is away when the broker starts: no reader is moved over what it cannot reach."""
    broker.shut_down()
    away = root / "away"
    (root / "table").rename(away)
    (root / "table").write_text("no directory")
    client = BlockingClient(broker.namesrv)
    try:
        broker.restart()
        for _ in range(2):
            answer = pull(client, broker.address, 0, 0)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert "archive" in (answer.remark or "")
        queue = {"topic": TOPIC, "queueId": "0"}
        told = client.request(broker.address, RequestCode.GET_MIN_OFFSET, queue, accept=tuple(ResponseCode))
        assert told.code == ResponseCode.SYSTEM_BUSY
        # The log is served as ever.
        assert pull(client, broker.address, 0, log_begin(broker)).code == ResponseCode.SUCCESS
        (root / "table").unlink()
        away.rename(root / "table")
        eventually(lambda: pull(client, broker.address, 0, 0).code == ResponseCode.SUCCESS)
        assert len(read_all(broker, 0)) == COUNT // 2
    finally:
        if away.exists():
            (root / "table").unlink(missing_ok=True)
            away.rename(root / "table")
        client.close()


def test_a_reader_process_that_dies_is_started_again(broker: Broker) -> None:
    parts = broker.apps[0].parts
    assert parts is not None
    assert parts.archived is not None
    pid = parts.archived.process_id
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: parts.archived is not None and parts.archived.process_id != pid)
    client = BlockingClient(broker.namesrv)
    try:
        eventually(lambda: pull(client, broker.address, 1, 3).code == ResponseCode.SUCCESS)
    finally:
        client.close()


@pytest.mark.slow("waits for time-outs; storage that fails is the fast twin")
def test_storage_that_hangs_is_an_error_in_time(root: Path, broker: Broker) -> None:
    """The process is stopped, as one that waits for its storage: readers are refused, and nothing else is held up."""
    broker.shut_down()
    broker.restart()
    parts = broker.apps[0].parts
    assert parts is not None
    assert parts.archived is not None
    broker.call(lambda: setattr(parts.core.config, "archive_read_timeout", 300))
    client = BlockingClient(broker.namesrv)
    eventually(lambda: pull(client, broker.address, 0, log_begin(broker) - 1).code == ResponseCode.SUCCESS)
    pid = parts.archived.process_id
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        answer = pull(client, broker.address, 0, 0)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "has not answered for 300 ms" in (answer.remark or "")
        assert time.monotonic() - began < 20
        assert pull(client, broker.address, 0, log_begin(broker)).code == ResponseCode.SUCCESS
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: pull(client, broker.address, 0, 0).code == ResponseCode.SUCCESS)
    client.close()


RESTARTS = pytest.mark.slow("restarts a broker; flip is the fast twin")


@pytest.mark.parametrize(
    "damage", ["flip", *(pytest.param(kind, marks=RESTARTS) for kind in ("cut", "empty", "text"))]
)
def test_damaged_files_are_refused(root: Path, broker: Broker, damage: str) -> None:
    """Bytes that changed are noticed (page checksums), and no reader is moved over them."""
    broker.shut_down()
    files = sorted((root / "table").glob("topic=Old/**/*.parquet"))
    kept = {path: path.read_bytes() for path in files}
    for path, data in kept.items():
        if damage == "flip":
            middle = len(data) // 3
            path.write_bytes(
                data[:middle]
                + bytes(byte ^ 0x55 for byte in data[middle : middle + 64])
                + data[middle + 64 :]
            )
        else:
            path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "text": b"PAR1" * 100}[damage])
    client = BlockingClient(broker.namesrv)
    try:
        broker.restart()
        answer = pull(client, broker.address, 0, 0)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "archive" in (answer.remark or "")
    finally:
        for path, data in kept.items():
            path.write_bytes(data)
        client.close()
    assert len(read_all_after_failure(broker)) == COUNT // 2


def read_all_after_failure(broker: Broker) -> list[MessageExt]:
    client = BlockingClient(broker.namesrv)
    try:
        eventually(lambda: pull(client, broker.address, 0, 0).code == ResponseCode.SUCCESS)
    finally:
        client.close()
    return read_all(broker, 0)


@pytest.mark.slow("fills and archives a log three times; the other tests do it once")
def test_what_is_archived_later_is_noticed(tmp_path: Path) -> None:
    """The log expires right behind the job, long before the archive is looked at again."""
    with Broker(store=tmp_path / "store", settings=settings(tmp_path)) as broker:
        low = 0
        for run in range(3):
            fill(broker, range(run * 600, run * 600 + 600))
            begin = log_begin(broker)
            low = archive(broker, tmp_path, low)
            eventually(lambda begin=begin: log_begin(broker) > begin)
            found = [int(message.properties["n"]) for message in read_all(broker, 0)]
            assert found == list(range(0, run * 600 + 600, 2))


@pytest.mark.slow("several archives; test_every_message_is_the_one_it_was is the fast twin")
def test_a_topic_that_was_deleted_stays_away(tmp_path: Path) -> None:
    """A topic of the same name begins anew: what the archive has of the old one is not its messages."""
    with Broker(store=tmp_path / "store", settings=settings(tmp_path)) as broker:
        fill(broker, range(800))
        low = archive(broker, tmp_path)
        eventually(lambda: log_begin(broker) > 0)
        client = BlockingClient(broker.namesrv)
        client.request(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
        client.close()
        store = broker.apps[0].store
        assert store is not None
        eventually(lambda: broker.call(lambda: not store.deletions.behind))
        fill(broker, range(10_000, 11_200))
        archive(broker, tmp_path, low)
        eventually(lambda: log_begin(broker) > 0)
        found = read_all(broker, 0, log_begin(broker))
        assert all(int(message.properties["n"]) >= 10_000 for message in found)
        client = BlockingClient(broker.namesrv)
        answer = pull(client, broker.address, 0, 0)
        if answer.code == ResponseCode.SUCCESS:
            assert all(int(message.properties["n"]) >= 10_000 for message in decode_records(answer.body))
        client.close()


def test_the_brokers_own_topics_are_read_from_the_log_alone(broker: Broker) -> None:
    """Its services do not wait for an archive, whatever the job was told to archive."""
    parts = broker.apps[0].parts
    assert parts is not None
    archived = parts.archived
    assert archived is not None
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"):
        assert broker.call(lambda topic=topic: archived.sure_begin(topic, 0, 7)) == 7
        got = broker.call(lambda topic=topic: archived.get(topic, 0, 3, 7, 9, 1, 1, None))
        assert (got.status.name, got.next_offset) == ("OFFSET_TOO_SMALL", 7)
