"""A broker and a name server that have much, as processes, ours and RocketMQ's: what docs/scale.md compares.

    python -m tests.benchmarks large [--only topics | offsets | names] [--side mqspark | rocketmq] [--share F]

- **topics**: a broker starts with a topics.json of 100,000 topics.
- **offsets**: a broker starts with a consumerOffset.json of 10,000 groups x 1,000 queues; then one of the offsets is
  committed each second, so that the table is saved whenever it is time.
- **names**: 200 brokers, each on a connection of its own, register 5,000 topics each in one piece; then a route of all
  brokers is asked for.

Both get the same files and frames. Shown: processor time of a start until the server answers, memory (for Java also
the live heap), processor time of a second afterwards. Times are in seconds of a usual machine (tests/support/pace.py).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks.bench_scale import cpu_s, registration, resident_bytes, shown
from tests.interop import jars as jar_cache
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv
from tests.support.pace import slowness
from tests.support.remoting import (
    UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_CONSUMER_OFFSET,
    RawConnection,
)

REGISTER_BROKER, GET_ROUTE = 103, 105
SIDES = ("mqspark", "rocketmq")
LIVED_S = 30
ROUTES = 2_000
HEAP_MIB = {"topics": 2_048, "offsets": 4_096, "names": 2_048}


def topics_file(share: float) -> str:
    rows = (
        f'"Topic-{number:06d}":{{"attributes":{{}},"order":false,"perm":6,"readQueueNums":4,'
        f'"topicFilterType":"SINGLE_TAG","topicName":"Topic-{number:06d}","topicSysFlag":0,"writeQueueNums":4}}'
        for number in range(int(100_000 * share))
    )
    version = '"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1700000000000}'
    return "{" + version + ',\n\t"topicConfigTable":{\n\t\t' + ",\n\t\t".join(rows) + "\n\t}\n}"


def offsets_file(share: float) -> str:
    queues = ",".join(f"{queue}:{1_000_000 + queue}" for queue in range(1_000))
    rows = (f'"Topic@Group-{group:05d}":{{{queues}\n\t\t}}' for group in range(int(10_000 * share)))
    return '{\n\t"offsetTable":{\n\t\t' + ",\n\t\t".join(rows) + "\n\t}\n}"


def live_heap_mb(pid: int) -> float:
    subprocess.run(["jcmd", str(pid), "GC.run"], check=True, capture_output=True, timeout=120)
    said = subprocess.run(
        ["jcmd", str(pid), "GC.heap_info"], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    found = re.search(r"used (\d+)K", said)
    assert found, said
    return int(found.group(1)) / 1e3


def peak_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found.group(1)) / 1e3


@contextmanager
def broker_with(part: str, side: str, name: str, content: str) -> Iterator[Cluster]:
    """A broker that found this file in its ``config/``."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-large-")))
        config = folder / "broker" / "store" / "config"
        config.mkdir(parents=True)
        (config / name).write_text(content)
        settings: dict[str, object] = {"brokerClusterName": "c", "brokerName": "b"}
        if side == "rocketmq":
            # In one piece 100,000 topics are more than its name server reads, and it is never registered.
            settings["enableSplitRegistration"] = True
            jars = jar_cache.fetch()
            namesrv = stack.enter_context(rocketmq_namesrv(jars, folder / "namesrv"))
            yield stack.enter_context(
                rocketmq_broker(jars, folder / "broker", namesrv, heap_mib=HEAP_MIB[part], settings=settings)
            )
        else:
            namesrv = stack.enter_context(mqspark_namesrv(folder))
            yield stack.enter_context(mqspark_broker(folder / "broker", namesrv, settings))


def lived(what: str, side: str, pid: int, each_second: Callable[[], object] = lambda: None) -> None:
    began_s = cpu_s(pid)
    for _ in range(LIVED_S):
        each_second()
        time.sleep(1)
    shown(f"{what}, a second", "ms", [(cpu_s(pid) - began_s) / LIVED_S / slowness() * 1e3])
    shown(f"{what}, memory", "MB", [resident_bytes(pid) / 1e6])
    shown(f"{what}, memory at its peak", "MB", [peak_mb(pid)])
    if side == "rocketmq":
        shown(f"{what}, live heap", "MB", [live_heap_mb(pid)])


def topics(side: str, share: float) -> None:
    what = f"{side}, {int(100_000 * share):,} topics"
    with broker_with("topics", side, "topics.json", topics_file(share)) as broker:
        shown(f"{what}, a start", "s of processor time", [cpu_s(broker.broker_pid) / slowness()])
        lived(what, side, broker.broker_pid)


def offsets(side: str, share: float) -> None:
    what = f"{side}, {int(10_000 * share):,} groups x 1,000 queues of offsets"
    with broker_with("offsets", side, "consumerOffset.json", offsets_file(share)) as broker:
        shown(f"{what}, a start", "s of processor time", [cpu_s(broker.broker_pid) / slowness()])
        with RawConnection(broker.broker) as connection:
            place = {"consumerGroup": "Group-00000", "topic": "Topic", "queueId": 7}
            numbers = iter(range(2_000_000, 3_000_000))
            group = json.dumps({"groupName": "Group-00000"}).encode()
            topic = {
                "topic": "Topic", "defaultTopic": "TBW102", "readQueueNums": 1_000, "writeQueueNums": 1_000,
                "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
            }  # fmt: skip
            made = connection.request(UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, group)
            assert made.code == 0, made
            made = connection.request(UPDATE_AND_CREATE_TOPIC, **topic)
            assert made.code == 0, made

            def commit() -> None:
                reply = connection.request(UPDATE_CONSUMER_OFFSET, **place, commitOffset=next(numbers))
                assert reply.code == 0, reply

            lived(what, side, broker.broker_pid, commit)


def names(side: str, share: float) -> None:
    brokers, per_broker = int(200 * share), 5_000
    what = f"{side}, name server with {brokers} brokers x {per_broker:,} topics"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-large-")))
        if side == "rocketmq":
            options = [
                f"-Xmx{HEAP_MIB['names']}m",
                f"-Xms{HEAP_MIB['names']}m",
                "-XX:+UseG1GC",
                "-XX:-UseSerialGC",
            ]
            address = stack.enter_context(rocketmq_namesrv(jar_cache.fetch(), folder, options))
        else:
            more = {"maxRoutes": 2 * brokers * per_broker}
            address = stack.enter_context(mqspark_namesrv(folder, more))
        pid = listener(address)
        made = registration(0, per_broker, 1)
        before_s = cpu_s(pid)
        took = []
        for number in range(brokers):
            header = made[0] | {
                "brokerName": f"broker-{number:04d}",
                "brokerAddr": f"10.0.{number // 250}.{number % 250}:10911",
                "compressed": "false",
            }
            connection = stack.enter_context(RawConnection(address))
            began = time.perf_counter()
            reply = connection.request(REGISTER_BROKER, made[1], **header)
            took.append(time.perf_counter() - began)
            assert reply.code == 0, reply
        per_topic = (cpu_s(pid) - before_s) / brokers / per_broker / slowness()
        shown(f"{what}, a broker's topic registers in", "µs of processor time", [per_topic * 1e6])
        shown(f"{what}, the longest registration", "ms", [max(took) * 1e3])
        shown(f"{what}, memory", "MB", [resident_bytes(pid) / 1e6])
        if side == "rocketmq":
            shown(f"{what}, live heap", "MB", [live_heap_mb(pid)])
        for warm in (True, False):
            before_s = cpu_s(pid)
            with RawConnection(address) as connection:
                for _ in range(ROUTES):
                    reply = connection.request(GET_ROUTE, topic="Topic-000017")
                    assert reply.code == 0, reply
            if not warm:
                assert reply.body.count(b"brokerAddrs") == brokers
                cost = (cpu_s(pid) - before_s) / ROUTES / slowness()
                shown(f"{what}, a route of {brokers} brokers", "µs of processor time", [cost * 1e6])


def listener(address: str) -> int:
    """The process that listens there, one of this user."""
    port = int(address.rpartition(":")[2])
    wanted = {
        f"socket:[{fields[9]}]"
        for table in ("/proc/net/remotingserver", "/proc/net/tcp6")
        for fields in (line.split() for line in Path(table).read_text().splitlines()[1:])
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
    }
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(each.readlink()) in wanted for each in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:  # it has ended, or is another user's
            continue
    raise AssertionError(f"nobody listens at {address}")


PARTS = {each.__name__: each for each in (topics, offsets, names)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(PARTS), action="append")
    parser.add_argument("--side", choices=SIDES, action="append")
    parser.add_argument("--share", type=float, default=1.0)
    asked = parser.parse_args()
    for name in asked.only or PARTS:
        for side in asked.side or SIDES:
            PARTS[name](side, asked.share)


if __name__ == "__main__":
    main()
