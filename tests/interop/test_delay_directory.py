"""Delayed and timed messages in a directory that moves between a real broker and ours: each is delivered once, on
whichever has it when its time comes."""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mqspark.message import MessageExt
from mqspark.record.record import decode_records
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.topics import create_topic
from tests.support.clusters import Cluster, mqspark_broker
from tests.support.remoting import GET_MAX_OFFSET, RawConnection

SETTINGS = {
    "brokerName": "moving",
    "brokerClusterName": "Moving",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "mappedFileSizeTimerLog": 1 << 20,
    "messageDelayLevel": "1s 2s 25s",
    "timerRollWindowSlot": 20,
    "transactionCheckInterval": 3_600_000,
}
TOPIC = "MoveLater"
SOON_MS, LATER_MS = 1_500, 45_000


def send(broker: Cluster, names: Iterator[int], maker: str) -> dict[bytes, int]:
    """One of each kind; body → the earliest time it may be delivered."""
    due_ms = {}
    with RawConnection(broker.broker) as connection:
        for properties, delay_ms in (
            ("DELAY\x011\x02", 1_000),
            ("DELAY\x013\x02", 25_000),
            (f"TIMER_DELAY_MS\x01{SOON_MS}\x02", SOON_MS),
            (f"TIMER_DELAY_MS\x01{LATER_MS}\x02", LATER_MS),  # more than twice round a wheel of 20 ticks
            ("TIMER_DELAY_SEC\x0118\x02", 18_000),
        ):
            body = b"%s %d" % (maker.encode(), next(names))
            due_ms[body] = time.time_ns() // 1_000_000 + delay_ms
            connection.send(TOPIC, body, 0, properties, g=due_ms[body])
    return due_ms


def delivered(broker: Cluster) -> list[MessageExt]:
    messages: list[MessageExt] = []
    with RawConnection(broker.broker) as connection:
        end = int(connection.request(GET_MAX_OFFSET, topic=TOPIC, queueId=0).ext["offset"])
        offset = 0
        while offset < end:
            reply = connection.pull(TOPIC, 0, offset, group="g")
            assert reply.code == 0, reply
            messages += decode_records(reply.body)
            offset = int(reply.ext["nextBeginOffset"])
    return messages


def wait_for(broker: Cluster, bodies: set[bytes], timeout_s: float = 90) -> list[MessageExt]:
    deadline = time.monotonic() + timeout_s
    while True:
        found = delivered(broker)
        missing = bodies - {one.body for one in found}
        if not missing:
            return found
        assert time.monotonic() < deadline, f"not delivered: {missing}"
        time.sleep(0.5)


@pytest.mark.slow("real brokers start at every stop")
@pytest.mark.parametrize("kill", [False, True], ids=["clean stop", "kill"])
def test_they_are_delivered_by_whoever_has_the_directory(
    newest_jars: Jars, tmp_path: Path, kill: bool
) -> None:
    stop_signal = signal.SIGKILL if kill else signal.SIGTERM
    names = iter(range(1000))
    folder = tmp_path / "broker"

    def ours(namesrv: str) -> AbstractContextManager[Cluster]:
        return mqspark_broker(folder, namesrv, SETTINGS, stop_signal=stop_signal)

    def theirs(namesrv: str) -> AbstractContextManager[Cluster]:
        return rocketmq_broker(newest_jars, folder, namesrv, settings=SETTINGS, stop_signal=stop_signal)

    due_ms: dict[bytes, int] = {}
    with rocketmq_namesrv(newest_jars, tmp_path / "namesrv") as namesrv:
        for turn, host in enumerate((ours, theirs, ours)):
            with host(namesrv) as broker:
                create_topic(broker, TOPIC)
                sent = send(broker, names, host.__name__)
                due_ms |= sent
                soon = min(sent.values()) + SOON_MS
                before = {body for body, when_ms in due_ms.items() if when_ms <= soon}
                found = wait_for(broker, before)
                if turn == 2:
                    found = wait_for(broker, set(due_ms), 120)
                    time.sleep(3)
                    found = delivered(broker)
                else:
                    time.sleep(5)  # a real broker saves once a second, delay levels each ten and at its end
    for one in found:
        assert one.store_timestamp_ms >= due_ms[one.body], one.body
    counts = Counter(one.body for one in found)
    assert set(counts) == set(due_ms)
    if not kill:  # after a kill both say again what they had not saved
        assert set(counts.values()) == {1}, counts
