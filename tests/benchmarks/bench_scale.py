"""What grows with a cluster: processor time, bytes and memory of each part, the constants of docs/scale.md.

    python -m tests.benchmarks scale [--only namesrv | clients | host | spark] [--count N]

- **namesrv**: brokers register topics with a name server, in process; its memory, and the processor time of
  registrations, of heartbeats and of routes of topics on more and more brokers.
- **clients**: heartbeats of clients at a broker, in process; the list of a group's members; the allocation of queues.
- **host**: `mqspark host run` with 1, 2 and as many brokers as processors, each with a raw_load.py of its own; and the
  supervisor beside them.
- **spark**: the same brokers, written and read by one Spark, whose tasks have the same processors: what is compared is
  the processor time of a row, and whether each broker gets its share.

Times are processor time in seconds of a usual machine (tests/support/pace.py): rates say little on a busy one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession

import pyspark_pymq
from mqspark import AdminClient
from mqspark.client.consumer.allocate import Averagely, sort_clients, sort_queues
from mqspark.message import MessageQueue, crc32
from mqspark.namesrv.config import NamesrvConfig
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicRouteData,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.session import Session
from tests.benchmarks.report import figure
from tests.spark.conftest import stop_session
from tests.support.clusters import mqspark_host, mqspark_namesrv
from tests.support.frames import encode_register_body
from tests.support.pace import ProcessorTime, slowness
from tests.support.remoting import heartbeat_body, subscription
from tests.unit.broker_kit import Bench, Peer, namesrv_peer

R = TypeVar("R")

ROUNDS = 3
BROKERS, TOPICS = 200, 1_000
ROUTED = (1, 8, 64, 1_000)
IDLE_S = 20.0


def shown(name: str, unit: str, rounds: list[float]) -> None:
    made = figure(name, unit, rounds, less_is_better=True)
    print(f"   {name}: {made.median:.4g} {unit} ({min(rounds):.4g} to {max(rounds):.4g})", flush=True)


def cost_us(work: Callable[[], object], times: int) -> list[float]:
    """Processor time of one call, in µs of a usual machine, round by round."""
    work()
    rounds = []
    for _ in range(ROUNDS):
        with ProcessorTime() as took:
            for _ in range(times):
                work()
        rounds.append(took.seconds / times * 1e6)
    return rounds


def resident_bytes(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def registration(number: int, topics: int, counter: int) -> tuple[dict[str, str], bytes]:
    configs = [TopicConfig(topic_name=f"Topic-{topic:06d}") for topic in range(topics)]
    wrapper = TopicConfigAndMappingSerializeWrapper(
        topic_config_table={config.topic_name: config for config in configs},
        data_version=DataVersion(state_version=0, timestamp=1, counter=counter),
    )
    body = encode_register_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    address = f"10.0.{number // 250}.{number % 250}:10911"
    header = {
        "brokerName": f"broker-{number:04d}",
        "brokerAddr": address,
        "clusterName": "c",
        "haServerAddr": address.replace("10911", "10912"),
        "brokerId": "0",
        "bodyCrc32": str(crc32(body)),
    }
    return header, body


def accepted(peer: Peer, code: int, header: dict[str, str], body: bytes = b"") -> bytes:
    answer = peer.ask(code, header, body)
    assert answer.code == 0, answer.remark
    return bytes(answer.body)


def measure_name_server() -> None:
    core, _, _ = namesrv_peer()
    peers = [Peer(core, Session(number + 2, "127.0.0.1", 40_001 + number, [])) for number in range(BROKERS)]
    made = [registration(number, TOPICS, 1) for number in range(BROKERS)]
    before = resident_bytes()
    news = []
    for peer, (header, body) in zip(peers, made, strict=True):
        with ProcessorTime() as took:
            accepted(peer, RequestCode.REGISTER_BROKER, header, body)
        news.append(took.seconds * 1e3)
    grown = resident_bytes() - before
    shown(f"name server: memory of a broker's topic, {BROKERS} x {TOPICS}", "B", [grown / BROKERS / TOPICS])
    shown(f"a registration of {TOPICS} topics", "KB", [len(made[0][1]) / 1e3])
    shown(f"first registration of {TOPICS} topics", "ms", sorted(news)[len(news) // 2 :][:1])
    header, body = made[0]
    again = cost_us(lambda: accepted(peers[0], RequestCode.REGISTER_BROKER, header, body), 20)
    shown(f"the same registration of {TOPICS} topics again", "ms", [each / 1e3 for each in again])
    heartbeat = {key: header[key] for key in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    shown(
        "a broker's heartbeat",
        "µs",
        cost_us(lambda: accepted(peers[0], RequestCode.BROKER_HEARTBEAT, heartbeat), 2_000),
    )


def measure_routes() -> None:
    for what, config in (("cached", NamesrvConfig()), ("made anew", NamesrvConfig(max_route_cache_bytes=1))):
        core, _, first = namesrv_peer(config)
        names = []
        for number in range(max(ROUTED)):
            header, body = registration(number, 2, 1)
            peer = Peer(core, Session(number + 2, "127.0.0.1", 40_001 + number, []))
            accepted(peer, RequestCode.REGISTER_BROKER, header, body)
            names.append(header["brokerName"])
        for brokers in ROUTED:
            asked = {"topic": f"On-{brokers}"}
            accepted(first, RequestCode.REGISTER_TOPIC_IN_NAMESRV, asked, queues_on(names[:brokers]))
            answer = accepted(first, RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
            shown(f"a route over {brokers} brokers", "KB", [len(answer) / 1e3])
            ask = partial(accepted, first, RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
            shown(f"a route over {brokers} brokers, {what}", "µs", cost_us(ask, 100))
            if config.max_route_cache_bytes > 1:
                shown(
                    f"reading a route over {brokers} brokers",
                    "µs",
                    cost_us(partial(decode_body, TopicRouteData, answer), 20),
                )


def queues_on(names: list[str]) -> bytes:
    """Eight queues of a topic on each of these brokers."""
    queues = [
        {"brokerName": name, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "topicSysFlag": 0}
        for name in names
    ]
    return json.dumps({"queueDatas": queues, "brokerDatas": [], "filterServerTable": {}}).encode()


def measure_clients() -> None:
    def beat(number: int) -> bytes:
        return heartbeat_body(f"10.0.0.1@{number}#1", {"G": [subscription("T")]})

    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        bench = Bench(Path(folder))
        for members in (10, 100, 1_000):
            peers = [bench.peer() for _ in range(members)]
            bodies = [beat(number) for number in range(members)]
            for peer, body in zip(peers, bodies, strict=True):
                accepted(peer, RequestCode.HEART_BEAT, {}, body)
            one = cost_us(lambda: accepted(peers[0], RequestCode.HEART_BEAT, {}, bodies[0]), 1_000)  # noqa: B023
            shown(f"a client's heartbeat, {members} members", "µs", one)
            asked = {"consumerGroup": "G"}
            names = cost_us(lambda: accepted(peers[0], RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked), 200)  # noqa: B023
            shown(f"the list of {members} members", "µs", names)
            for peer in peers:
                peer.disconnect()
        bench.close()
    for queues, members in ((64, 16), (1_600, 200), (8_000, 1_000)):
        all_queues = [MessageQueue("T", f"broker-{number // 8:04d}", number % 8) for number in range(queues)]
        clients = [f"10.0.0.1@{number}#1" for number in range(members)]

        def allocate() -> None:
            Averagely()(clients[0], sort_queues(all_queues), sort_clients(clients))  # noqa: B023

        shown(f"allocation of {queues} queues to {members} members", "µs", cost_us(allocate, 20))


def raw_sends(addresses: list[str], count: int) -> list[dict[str, Any]]:
    """One load generator for each broker, beside each other."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.raw_load", "send", "--port", address.rpartition(":")[2],
             "--count", str(count)],
            stdout=subprocess.PIPE, text=True,
        )
        for address in addresses
    ]  # fmt: skip
    results = []
    for child in children:
        out, _ = child.communicate(timeout=600)
        assert child.returncode == 0
        results.append(json.loads(out))
    return results


def measure_host(most: int, count: int) -> None:
    """The cost of a message shows whether brokers disturb each other, also where load generators take processors."""
    settings = {"flushDiskType": "ASYNC_FLUSH", "autoCreateTopicEnable": True, "brokerName": "b"}
    for brokers in sorted({1, 2, most}):
        with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
            folder = Path(name)
            with mqspark_namesrv(folder) as namesrv, mqspark_host(folder, namesrv, brokers, settings) as host:
                pids = list(host.pids().values())
                time.sleep(1.0)
                began = {pid: cpu_s(pid) for pid in (*pids, host.child.pid)}
                shown(f"supervisor of {brokers}, resident", "MB", [resident_bytes(host.child.pid) / 1e6])
                shown(
                    f"one of {brokers} brokers, resident", "MB", [resident_bytes(pid) / 1e6 for pid in pids]
                )
                time.sleep(IDLE_S)
                idle = {pid: (cpu_s(pid) - began[pid]) / IDLE_S / slowness() * 1e3 for pid in began}
                shown(f"supervisor of {brokers}, processor time", "ms/s", [idle[host.child.pid]])
                shown(f"one of {brokers} idle brokers, processor time", "ms/s", [idle[pid] for pid in pids])
                rates, costs = [], []
                for _ in range(ROUNDS):
                    before = {pid: cpu_s(pid) for pid in pids}
                    results = raw_sends(host.brokers, count)
                    messages = results[0]["messages"]
                    rates.append(sum(each["per_second"] for each in results))
                    costs.append(
                        sum(cpu_s(pid) - before[pid] for pid in pids)
                        / len(pids)
                        / messages
                        * 1e6
                        / slowness()
                    )
                shown(f"{brokers} brokers: broker CPU a message", "µs", costs)
                shown(f"{brokers} brokers: messages of 1 KiB", "/s", rates)


def measure_spark(most: int, count: int) -> None:
    session = SparkSession.builder.master(f"local[{most}]").config("spark.ui.enabled", "false")
    for name, value in pyspark_pymq.tuned_settings().items():
        session = session.config(name, value)
    spark = session.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(count, numPartitions=most).selectExpr(
        "cast(rpad(cast(id as string), 1024, 'x') as binary) as value"
    )
    rows = rows.cache()
    rows.count()
    try:
        for brokers in sorted({1, 2, most}):
            with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
                folder = Path(name)
                settings = {"flushDiskType": "ASYNC_FLUSH", "brokerName": "b"}
                with (
                    mqspark_namesrv(folder) as namesrv,
                    mqspark_host(folder, namesrv, brokers, settings) as host,
                ):
                    spark_rounds(rows, count, namesrv, list(host.pids().values()))
    finally:
        stop_session(spark)


def spark_rounds(rows: DataFrame, count: int, namesrv: str, pids: list[int]) -> None:
    what = f"{len(pids)} brokers and Spark"
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], R]) -> R:
        began, used = time.perf_counter(), sum(map(cpu_s, pids))
        result = work()
        rates.setdefault(name, []).append(count / (time.perf_counter() - began))
        costs.setdefault(name, []).append((sum(map(cpu_s, pids)) - used) / count / slowness() * 1e6)
        return result

    for number in range(ROUNDS + 1):
        topic = f"Spread-{number}"
        with AdminClient(namesrv) as admin:
            admin.create_topic(topic, queues=4)
        at = {"nameserver": namesrv, "topic": topic}
        writer = rows.write.format("pymq").options(**at).mode("append")
        timed("written", writer.save)
        reader = rows.sparkSession.read.format("pymq").options(**at, columns="value, broker")
        found = timed("read", lambda: reader.load().groupBy("broker").count().collect())  # noqa: B023
        parts = {row["broker"]: row["count"] for row in found}
        assert sum(parts.values()) == count, parts
        assert len(parts) == len(pids), f"a broker got nothing: {parts}"
        assert min(parts.values()) > count / len(pids) / 2, f"a broker got less than half its share: {parts}"
        if not number:  # the first round warms up
            rates.clear()
            costs.clear()
    for name, rounds in rates.items():
        shown(f"{what}: rows of 1 KiB {name}", "/s", rounds)
        shown(f"{what}: broker CPU a row {name}", "µs", costs[name])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["namesrv", "clients", "host", "spark"])
    parser.add_argument("--count", type=int, default=100_000)
    asked = parser.parse_args()
    if asked.only in (None, "namesrv"):
        measure_name_server()
        measure_routes()
    if asked.only in (None, "clients"):
        measure_clients()
    if asked.only in (None, "host"):
        measure_host(os.cpu_count() or 1, asked.count)
    if asked.only in (None, "spark"):
        measure_spark(os.cpu_count() or 1, asked.count)


if __name__ == "__main__":
    main()
