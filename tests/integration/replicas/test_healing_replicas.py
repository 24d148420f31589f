"""Damaged logs of a master and of its slave, healed over real sockets while messages are sent."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mqspark import LitePullConsumer, Message, Producer, SendStatus
from mqspark.testing import Cluster
from tests.integration.client.client_kit import FIRST
from tests.support import web
from tests.support.slaves import MASTER, SLAVE, log_of, until_copied
from tests.support.waiting import eventually

TOPIC = "Healed"
COUNT = 2_500
"""More than three megabytes: the connection for the log compares the last one of them."""
SEGMENT = 1 << 20


def flip(cluster: Cluster, number: int, position: int) -> None:
    start = position - position % SEGMENT
    with (cluster.store_paths[number] / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(position - start)
        (octet,) = file.read(1)
        file.seek(position - start)
        file.write(bytes([octet ^ 1]))


@pytest.mark.slow("a minute: three megabytes of messages, healed on both sides")
def test_each_heals_the_other(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": SEGMENT, "scrubBytesPerSecond": 64 << 20}
    with Cluster(slaves=1, store=tmp_path, settings=settings, http=True) as cluster:
        with Producer(cluster.namesrv, group="P") as producer:
            for number in range(COUNT):
                body = b"%05d" % number + random.Random(number).randbytes(1_300)
                assert producer.send(Message(TOPIC, body)).status is SendStatus.SEND_OK
        until_copied(cluster)
        sound = log_of(cluster, MASTER)
        assert log_of(cluster, SLAVE) == sound
        places = [len(sound) - (3 << 19), len(sound) // 3, 200]

        cluster.kill(SLAVE)
        for place in places:
            flip(cluster, SLAVE, place)
        cluster.restart(SLAVE)
        eventually(lambda: log_of(cluster, SLAVE) == sound, "the slave to be healed")

        for place in places:
            flip(cluster, MASTER, place)
        eventually(lambda: log_of(cluster, MASTER) == sound, "the master to be healed", timeout_s=60)
        url = cluster.http_urls[MASTER]
        eventually(lambda: web.get(f"{url}/health/ready").status_code == 200, "the master to be ready")
        assert log_of(cluster, SLAVE) == sound
        with LitePullConsumer(cluster.namesrv, group="G", consume_from=FIRST) as consumer:
            consumer.subscribe(TOPIC)
            found: set[int] = set()
            while len(found) < COUNT:
                batch = consumer.poll(10_000)
                assert batch
                found |= {int(message.body[:5]) for message in batch}
