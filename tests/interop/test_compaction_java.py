"""A Java consumer finds the last value of each key when the log that had it has expired, and nobody ran a job."""

from pathlib import Path

import pytest

from mqspark import AdminClient, Message, MessageQueue, Producer
from mqspark.testing import Broker
from tests.interop.driver import JavaDriver, body_of
from tests.support.waiting import eventually

TOPIC, COUNT, OLD = "Compacted", 300, 20

pytestmark = [
    pytest.mark.parametrize("java", ["JSON"], ids=["json"], indirect=True),
    pytest.mark.slow(
        "a log has to expire first; tests/integration/archive/test_own_compaction.py reads with our client"
    ),
]


def test_the_last_value_of_each_key(java: JavaDriver, tmp_path: Path) -> None:
    settings = {
        "mappedFileSizeCommitLog": 65_536,
        "fileReservedTime": 0,
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "cleanResourceInterval": 100,
    }
    with Broker(store=tmp_path, settings=settings) as broker:
        with AdminClient(broker.namesrv) as admin:
            admin.create_topic(TOPIC, queues=1, attributes={"cleanup.policy": "COMPACTION"})
        values: dict[str, bytes] = {}
        with Producer(broker.namesrv, group="fill", compress_from_bytes=1 << 20) as producer:
            for number in range(COUNT):
                key = f"old{number}" if number < OLD else f"k{number % 7}"
                values[key] = str(number).encode().ljust(1_200, b".")
                producer.send(Message.of(TOPIC, values[key], keys=key), queue=MessageQueue(TOPIC, "dev", 0))
        store = broker.apps[0].store
        assert store is not None
        eventually(
            lambda: broker.call(lambda: store.offsets.log_bounds(TOPIC, 0)[0]) > 2 * OLD, "the log expired"
        )
        handle = java.push(broker.namesrv, TOPIC, "from-the-first")
        found: dict[str, bytes] = {}

        def takes() -> bool:
            for message in java.take(handle, 32, timeout_ms=1_000):
                found[message["properties"]["KEYS"]] = max(
                    found.get(message["properties"]["KEYS"], b""), body_of(message), key=_number
                )
            return found == values

        eventually(takes, lambda: f"{len(found)} of {len(values)} keys")
        java.call("push.stop", handle=handle)


def _number(body: bytes) -> int:
    return int(body.rstrip(b".") or b"-1")
