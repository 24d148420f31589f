"""Older Java clients, unmodified, on our broker: java/Basics.java runs once for each, its scenarios side by side.

4.9.8 is the last of the versions that most applications still run; 5.3.3 is the oldest that we promise.
"""

import base64
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop import jars as jar_cache
from tests.interop.rocketmq import java_command
from tests.interop.topics import create_group, create_topic
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.draws import some
from tests.support.maven import or_skip
from tests.support.processes import set_options, tail

TOPICS = ("Sends", "Order", "Filters", "Delays", "Transactions", "Broadcast", "Retries")
SETTINGS = {
    "messageDelayLevel": "1s 2s",
    "transactionTimeOut": 500,
    "transactionCheckInterval": 500,
    "transactionOpBatchInterval": 100,
    "enablePropertyFilter": True,
}
TIMEOUT_S = 150


@dataclass(frozen=True, slots=True)
class Received:
    queue: int
    offset: int
    body: str
    tags: str
    keys: str
    times: int
    unicode: str
    message_id: str


class Report:
    """What the program printed."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = [line.split("\t") for line in lines]

    def of(self, kind: str) -> list[list[str]]:
        return [fields[1:] for fields in self.lines if fields[0] == kind]

    def sent(self, how: str) -> list[list[str]]:
        """Status, queue id, queue offset, message id, offset message id of each."""
        return [fields[1:] for fields in self.of("sent") if fields[0] == how]

    def received(self, scenario: str) -> list[Received]:
        return [
            Received(
                int(queue), int(offset), _text(body), tags, keys, int(times), _text(unicode), message_id
            )
            for name, queue, offset, body, tags, keys, times, unicode, message_id in self.of("received")
            if name == scenario
        ]  # fmt: skip

    def bodies(self, scenario: str) -> Counter[str]:
        return Counter(one.body for one in self.received(scenario))


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = set_options(SETTINGS)
    with mqspark_cluster(tmp_path_factory.mktemp("old"), *settings) as running:
        yield running


@pytest.fixture(scope="module", params=some(jar_cache.OLD_CLIENTS, 1))
def report(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Report:
    version: str = request.param
    jars = or_skip(lambda: jar_cache.fetch_client(version))
    suffix = version.replace(".", "")
    for topic in TOPICS:
        create_topic(cluster, f"{topic}-{suffix}")
    # What it commits before its first heartbeat would be lost: nobody knows the group then.
    create_group(cluster, f"basics-pull-{suffix}")
    folder: Path = tmp_path_factory.mktemp("basics")
    options = [
        "-XX:TieredStopAtLevel=1",
        "-Drocketmq.client.rebalance.waitInterval=500",
        f"-Drocketmq.client.localOffsetStoreDir={folder / 'offsets'}",
        f"-Drocketmq.client.logRoot={folder}",
    ]
    command = java_command(jars, "Basics", folder, cluster.namesrv, suffix, heap_mib=256, options=options)
    log = folder / "basics.err"
    with log.open("w") as errors:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=folder,
        )
    lines = [line for line in done.stdout.splitlines() if "\t" in line or line == "done"]
    assert lines, f"nothing was reported, exit code {done.returncode}\n{tail(log)}"
    assert lines[-1] == "done", f"exit code {done.returncode}\n{tail(log)}"
    found = Report(lines)
    assert not found.of("failed"), f"{found.of('failed')}\n{tail(log)}"
    return found


def test_sends_arrive_everywhere(report: Report) -> None:
    """Sync, async, one-way and batch sends, read by push, lite pull and pull consumers."""
    kinds = {"sync": 5, "async": 5, "oneway": 5, "batch": 10}
    bodies = Counter(f"{how}-{number}" for how, count in kinds.items() for number in range(count))
    for scenario in ("concurrent", "lite", "pull"):
        assert report.bodies(scenario) == bodies
        for one in report.received(scenario):
            assert (one.tags, one.unicode, one.times) == ("S", f"ü{one.body}", 0)
            assert one.keys == (f"key-{one.body[-1]}" if one.body.startswith("sync") else "k")
    stored = {(one.queue, one.offset): one for one in report.received("pull")}
    assert len(stored) == 25
    for how in ("sync", "async"):
        for status, queue, offset, message_id, _ in report.sent(how):
            assert status == "SEND_OK"
            one = stored[int(queue), int(offset)]
            assert one.body.startswith(how)
            assert one.message_id == message_id
    ((status, queue, offset, ids, offset_ids),) = report.sent("batch")
    assert status == "SEND_OK"
    members = [stored[int(queue), int(offset) + number] for number in range(10)]
    assert [one.body for one in members] == [f"batch-{number}" for number in range(10)]
    # The ids that the producer was told are those that consumers see.
    assert [one.message_id for one in members] == ids.split(",")
    assert len(offset_ids.split(",")) == 10
    ends = Counter(one.queue for one in stored.values())
    assert {int(queue): (int(end), int(first)) for queue, end, first in report.of("offset")} == {
        queue: (ends[queue], 0) for queue in range(4)
    }


def test_order_is_kept(report: Report) -> None:
    received = report.received("orderly")
    assert Counter(one.body for one in received) == Counter(str(number) for number in range(20))
    by_queue: dict[int, list[int]] = {}
    for one in received:
        by_queue.setdefault(one.queue, []).append(one.offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())
    for key in range(4):
        mine = [int(one.body) for one in received if one.keys == f"order-{key}"]
        assert mine == sorted(mine)


def test_filters_by_tags_and_sql(report: Report) -> None:
    assert report.bodies("tags") == Counter(str(number) for number in range(12) if number % 3 < 2)
    assert report.bodies("sql") == Counter(str(number) for number in range(3, 10) if number % 3 != 1)


def test_delays(report: Report) -> None:
    assert report.bodies("delays") == Counter(["level-1", "level-2"])
    late = {_text(body): int(late_ms) for body, late_ms in report.of("delay")}
    assert late["level-1"] >= 1000
    assert late["level-2"] >= 2000


def test_transactions(report: Report) -> None:
    assert report.bodies("transactions") == Counter(["commit", "late-commit"])
    checked = {_text(body) for (body,) in report.of("checked")}
    assert "late-commit" in checked
    assert checked <= {"late-commit", "late-rollback", "commit", "rollback"}


def test_everybody_gets_a_broadcast(report: Report) -> None:
    for member in range(2):
        assert report.bodies(f"broadcast-{member}") == Counter(str(number) for number in range(10))


def test_retries_and_dead_letters(report: Report) -> None:
    attempts = sorted((one.body, one.times) for one in report.received("retries"))
    assert attempts == [("never", 0), ("never", 1), ("never", 2), ("second-time", 0), ("second-time", 1)]
    assert report.bodies("dead") == Counter(["never"])
