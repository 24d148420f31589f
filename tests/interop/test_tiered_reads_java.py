"""A Java consumer reads a topic from its first message when the log that had it is long gone."""

from pathlib import Path

import pytest

from mqspark import Message, MessageQueue, Producer
from mqspark.store.disk.notes.archivednote import ARCHIVED, encode_archived
from mqspark.testing import Broker
from tests.interop.driver import JavaDriver, body_of
from tests.support.archive_tools import archive_log
from tests.support.waiting import eventually

TOPIC, COUNT = "Tiered", 600

pytestmark = pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True)


@pytest.mark.slow("a JVM and an archive; tests/integration/archive/test_tiered_reads.py is the fast twin")
def test_from_the_first_message(java: JavaDriver, tmp_path: Path) -> None:
    settings = {
        "mappedFileSizeCommitLog": 131_072,
        "fileReservedTime": 0,
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "cleanResourceInterval": 100,
        "deleteArchivedOnly": True,
        "archiveUrl": str(tmp_path / "table"),
    }
    bodies = [f"message {number} ".encode().ljust(700, b"x") for number in range(COUNT)]
    with Broker(store=tmp_path / "store", settings=settings) as broker:
        with Producer(broker.namesrv, group="fill") as producer:
            for number, body in enumerate(bodies):
                message = Message.of(TOPIC, body, keys=f"k{number}", tags="t", properties={"n": str(number)})
                producer.send(message, queue=MessageQueue(TOPIC, "dev", number % 2))
        end = archive_log(broker.store_path, str(tmp_path / "table"))
        (broker.store_path / ARCHIVED).write_bytes(encode_archived(end))
        store = broker.apps[0].store
        assert store is not None
        eventually(lambda: broker.call(lambda: store.offsets.log_bounds(TOPIC, 0)[0]) > 50, "the log expired")
        handle = java.push(broker.namesrv, TOPIC, "from-the-first", expression="t")
        got = java.take(handle, COUNT, timeout_ms=50_000)
        java.call("push.stop", handle=handle)
        assert sorted(body_of(message) for message in got) == sorted(bodies)
        assert {message["properties"]["n"] for message in got} == {str(number) for number in range(COUNT)}
        pulls = java.call("pull.start", namesrv=broker.namesrv, group="puller")["handle"]
        queue = [TOPIC, "dev", 1]
        assert java.call("pull.do", handle=pulls, verb="min_offset", queue=queue) == 0
        earliest = java.call("pull.do", handle=pulls, verb="earliest_store_time", queue=queue)
        assert java.call("pull.do", handle=pulls, verb="search_offset", queue=queue, timestamp=earliest) == 0
        java.call("pull.stop", handle=pulls)
