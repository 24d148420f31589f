"""A small store directory, made by a broker, and brokers started on it again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from mqspark.message import encode_properties
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import RequestCode
from mqspark.testing import Broker, FakeClock
from mqspark_server.commands.local.store_cli import store
from tests.security.store.damage_table import MESSAGES, SETTINGS
from tests.support import web
from tests.support.processes import set_options
from tests.support.remoting import RawConnection
from tests.support.store_tools import drain

TIMER_MS = 50_000
DELAY_MS = 60_000
START_MS = 1_700_000_000_000
LOOK_MS = 30_000
"""After the start: both messages still wait."""
READERS = SubscriptionGroupConfig(group_name="readers")


def _send(connection: RawConnection, topic: str, queue_id: int, body: bytes, **properties: str) -> None:
    reply = connection.request(
        RequestCode.SEND_MESSAGE, body, producerGroup="g", topic=topic, defaultTopic="TBW102",
        defaultTopicQueueNums=4, queueId=queue_id, sysFlag=0, bornTimestamp=START_MS, flag=0,
        properties=encode_properties(properties).decode(), reconsumeTimes=0, unitMode=False, batch=False,
    )  # fmt: skip
    assert reply.code == 0, (reply.code, reply.remark)


def make_store(root: Path, settings: Mapping[str, Any] = SETTINGS) -> None:
    clock = FakeClock(START_MS)
    with Broker(store=root, settings=settings, clock=clock) as broker:
        with RawConnection(broker.address, 60) as connection:
            _send(connection, "Slow", 1, b"slow")
            _send(connection, "Later", 0, b"timer", TIMER_DELIVER_MS=str(START_MS + TIMER_MS))
            _send(connection, "Later", 0, b"delayed", DELAY="5")
            for number in range(MESSAGES):
                _send(
                    connection,
                    "Orders",
                    0,
                    b"%06d" % number * 60,
                    KEYS=f"k{number}",
                    UNIQ_KEY=f"u{number:06d}",
                )
        for offset in (10, 30):
            if offset == 30:  # a second save leaves the first as .bak
                broker.restart()
            app = broker.apps[0]
            broker.call(lambda app=app: app.parts.core.state.subscriptions.put(READERS))
            with RawConnection(broker.address, 60) as connection:
                reply = connection.request(
                    RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", topic="Orders", queueId=0,
                    commitOffset=offset,
                )  # fmt: skip
                assert reply.code == 0, (reply.code, reply.remark)
            if offset == 10:
                clock.advance(10_000)


@dataclass(slots=True)
class Seen:
    status: int
    health: dict[str, Any]
    metrics: dict[tuple[str, str], int]
    bodies: list[int]
    offset: int | None
    later: Counter[bytes]
    next_offset: int


def look(root: Path, settings: Mapping[str, Any] = SETTINGS, *, wait_ms: int = 0) -> Seen:
    """Start a broker, look, wait until what waits is due, look, send one, stop it."""
    clock = FakeClock(START_MS + LOOK_MS)
    with Broker(store=root, settings=settings, clock=clock, http=True) as broker:
        app = broker.apps[0]
        clock.advance(wait_ms)
        answer = web.get(f"{broker.http_url}/health/ready")
        metrics: dict[tuple[str, str], int] = {}
        for line in web.get(f"{broker.http_url}/metrics").text.splitlines():
            if line.startswith("rocketmq_storage_damage{"):
                labels = dict(
                    part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(",")
                )
                metrics[labels["kind"].strip('"'), labels["outcome"].strip('"')] = int(
                    float(line.split()[-1])
                )
        found = broker.call(lambda: drain(app.store, "Orders", 0))
        clock.advance(DELAY_MS - LOOK_MS + 5_000)
        later = broker.call(lambda: drain(app.store, "Later", 0))
        with RawConnection(broker.address, 60) as connection:
            reply = connection.request(
                RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="readers", topic="Orders", queueId=0
            )
            offset = int(reply.ext["offset"]) if reply.code == 0 else None
            _send(connection, "Orders", 0, b"new")
        (new,) = broker.call(
            lambda: drain(app.store, "Orders", 0, begin=app.store.offsets.max_offset("Orders", 0) - 1)
        )
        return Seen(
            answer.status_code,
            answer.json(),
            metrics,
            [int(message.body[:6]) for message in found],
            offset,
            Counter(message.body for message in later),
            new.queue_offset,
        )


def run_fsck(root: Path, *options: str) -> tuple[int, tuple[str, ...]]:
    """Exit code; severity and kind of what it finds, or why it could not."""
    sets = set_options(SETTINGS)
    done = CliRunner().invoke(store, ["fsck", str(root), "-o", "json", *sets, *options])
    if done.exit_code == 1:
        return 1, (str(done.exception).replace(f"{root}/", ""),)
    report = json.loads(done.stdout)
    return done.exit_code, tuple(
        sorted({f"{each['severity']} {each['kind']}" for each in report["findings"]})
    )
