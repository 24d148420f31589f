"""What one broker and one name server have much of, in process: topics, queues, offsets, connections, long polls,
timers, half messages, messages handed out, a log of a tebibyte.

    python -m tests.benchmarks many [--only PART] [--share F]

Each part is filled, lives some seconds by a clock that it moves, is saved and opened again. It shows memory an entry,
processor time, and **the longest turn**: no call of the core that a loop makes may take long, whatever there is. Jobs
are what another thread does. ``--share`` takes a part of everything. Times are processor time in seconds of a usual
machine (tests/support/pace.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from mqspark.base.clock import SystemClock
from mqspark.broker.config import BrokerConfig
from mqspark.broker.tables.consumer_offsets import ConsumerOffsets
from mqspark.broker.tables.offset_row import offsets_in_slices
from mqspark.broker.tables.topics import Topics, copy_config
from mqspark.message import encode_host
from mqspark.namesrv.config import NamesrvConfig
from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import TopicConfig
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.session import Session
from mqspark.protocol.slices import Work, finished
from mqspark.record.record import PendingRecord, encode_record
from mqspark.record.recordlayout import BLANK_MAGIC
from mqspark.store import MessageStore, StoreConfig
from mqspark.store.disk.diskjobs import Job, PreparedJob, run_here
from mqspark.store.disk.savedtables import SteppedJob
from mqspark_server.process.collector import NEVER, YOUNG_OBJECTS
from tests.benchmarks.bench_scale import accepted, cost_us, registration, resident_bytes, shown
from tests.benchmarks.watched import described
from tests.support.pace import slowness
from tests.support.store_tools import query
from tests.unit.broker_kit import PULL, SEND, Bench, Peer, last_registration, namesrv_peer, pull_ext, send_ext
from tests.unit.pop_kit import POP, pop_ext
from tests.unit.transaction_kit import Kit

R = TypeVar("R")

ROOMY = {
    "mapped_file_size_commit_log": 1 << 28,
    "mapped_file_size_consume_queue": 600_000,
    "max_hash_slot_num": 500_000,
    "max_index_num": 2_000_000,
}
NO_BOUND = (1 << 31) - 1


LOOK_S = 0.0005
"""Where a call is, is noted after this time."""


class Longest:
    """The longest calls of a core by name. Garbage is collected as in a server (process/collector.py); the longest
    collection is shown beside them."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self.where: dict[str, str] = {}
        self.collected = 0.0
        self._began = self._gc_began = self._gc = 0.0
        self._at = ""
        gc.callbacks.append(self._note_collection)
        gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, LOOK_S, LOOK_S)

    def timed(self, name: str, call: Callable[[], R]) -> R:
        self._gc, self._at = 0.0, ""
        self._began = began = time.thread_time()
        result = call()
        self._began, took = 0.0, time.thread_time() - began - self._gc
        if took > self.longest.get(name, 0.0):
            self.longest[name], self.where[name] = took, self._at
        return result

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.thread_time()
        else:
            took = time.thread_time() - self._gc_began
            self._gc += took
            if self._began:
                self.collected = max(self.collected, took)

    def _look(self, number: int, frame: FrameType | None) -> None:
        if self._began and not self._at and time.thread_time() - self._began >= LOOK_S:
            self._at = described(frame)

    def show(self, what: str) -> None:
        """Ends the watch."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.callbacks.remove(self._note_collection)
        slow = slowness()
        print(f"   {what}, the longest turns (a collection takes {self.collected / slow * 1e3:.2f} ms):")
        for name, took in sorted(self.longest.items(), key=lambda each: -each[1])[:4]:
            print(f"      {name} {took / slow * 1e3:.2f} ms {self.where[name]}")
        shown(f"{what}, the longest turn", "ms", [max(self.longest.values()) / slow * 1e3])


class Turns(Longest):
    """Turns of a broker; and what its jobs took."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.job_s: dict[str, float] = {}

    def live(self, seconds: int) -> None:
        """As the shell does it: ticks, turns, long work, and jobs once a second."""
        broker = self.bench.broker
        for _ in range(seconds):
            for _ in range(10):
                self.bench.clock.advance(100)
                self.timed("tick", broker.tick)
                self.turn()
            for job in self.timed("jobs", lambda: list(broker.jobs())):
                self.run(job)
            self.turn()

    def turn(self) -> None:
        broker = self.bench.broker
        self.timed("turn", broker.turn)
        while broker.work_waits:
            self.timed("work", broker.work)
        self.timed("turn", broker.turn)
        job = self.bench.store.pipeline.begin_flush()
        if job is not None:
            job.run()
            self.timed("progress", lambda: broker.progress(self.bench.store.pipeline.end_flush(job)))

    def run(self, job: Job) -> None:
        name = type(job).__name__.lstrip("_")
        slices = job.prepare() if isinstance(job, PreparedJob) else iter(())
        while self.timed(f"{name}, a slice", lambda: next(slices, StopIteration)) is not StopIteration:
            continue
        began = time.thread_time()
        job.run()
        self.job_s[name] = max(self.job_s.get(name, 0.0), time.thread_time() - began)
        if isinstance(job, SteppedJob):
            steps = job.steps()
            while self.timed(f"{name}, a step", lambda: next(steps, StopIteration)) is not StopIteration:
                continue
        else:
            self.timed(f"{name}, done", job.done)

    def show(self, what: str) -> None:
        super().show(what)
        slow = slowness()
        for name, took in self.job_s.items():
            if took / slow > 0.05:
                shown(f"{what}, {name} in its thread", "ms", [took / slow * 1e3])


def processor_s(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return (time.thread_time() - began) / slowness()


def grown(what: str, count: int, fill: Callable[[], object]) -> None:
    """Fill, and show memory and time an entry."""
    gc.collect()  # as Collector.start
    gc.freeze()
    before = resident_bytes()
    took = processor_s(fill)
    shown(f"{what}, memory of one", "B", [(resident_bytes() - before) / count])
    shown(f"{what}, one is made in", "µs", [took / count * 1e6])


def reopened(what: str, bench: Bench) -> None:
    shown(f"{what}, stop", "ms", [processor_s(bench.close) * 1e3])
    shown(f"{what}, start", "ms", [processor_s(bench.open) * 1e3])
    bench.close()


# --- tables -------------------------------------------------------------------------------------------------


def topics(folder: Path, share: float) -> None:
    count = int(100_000 * share)
    what = f"{count:,} topics"
    bench = Bench(folder, max_topic_table_bytes=NO_BOUND, max_topics=NO_BOUND, max_tables_bytes=NO_BOUND)
    table = bench.broker.state.topics

    def fill() -> None:
        for number in range(count):
            table.put(TopicConfig(topic_name=f"Topic-{number:06d}", read_queue_nums=4, write_queue_nums=4))

    turns = Turns(bench)
    grown(what, count, fill)
    turns.live(12)
    table.put(TopicConfig(topic_name="One-more", read_queue_nums=4, write_queue_nums=4))
    turns.live(12)
    bench.broker.publication.requests()
    shown(f"{what}, a registration", "ms", cost_ms(lambda: last_registration(bench.broker)))
    turns.show(what)
    reopened(what, bench)


def queues(folder: Path, share: float) -> None:
    count = int(100_000 * share)
    what = f"{count:,} queues that changed"
    bench = Bench(folder, store_settings=ROOMY, max_tables_bytes=NO_BOUND)
    store = bench.store

    def fill() -> None:
        for number in range(count):
            topic, queue_id = f"Topic-{number // 8:06d}", number % 8
            store.appender.put(
                PendingRecord(
                    topic=topic, queue_id=queue_id, body=b"x", born_timestamp_ms=1, born_host=bytes(8)
                )
            )
            if number % 64 == 63:
                store.pipeline.commit()

    grown(what, count, fill)
    turns = Turns(bench)
    turns.live(3)
    fill()
    turns.live(12)
    turns.show(what)
    bench.close()


def cost_ms(work: Callable[[], object]) -> list[float]:
    return [each / 1e3 for each in cost_us(work, 1)]


def offsets(folder: Path, share: float) -> None:
    groups, queues = int(10_000 * share), 1_000
    what = f"{groups:,} groups x {queues:,} queues of offsets"
    bench = Bench(folder, max_offset_table_bytes=NO_BOUND, max_tables_bytes=NO_BOUND)
    table = bench.broker.state.offsets

    def fill() -> None:
        for group in range(groups):
            for queue in range(queues):
                table.commit(f"Group-{group:05d}", "Topic", queue, 1_000_000 + queue)

    turns = Turns(bench)
    grown(what, groups * queues, fill)
    for second in range(30):
        table.commit("Group-00000", "Topic", 0, second)
        turns.live(1)
    turns.show(what)
    shown(f"{what}, the file", "MB", [(folder / "config" / "consumerOffset.json").stat().st_size / 1e6])
    reopened(what, bench)


def connections(folder: Path, share: float) -> None:
    count = int(20_000 * share)
    what = f"{count:,} connections"
    bench = Bench(folder, max_client_table_bytes=NO_BOUND, max_tables_bytes=NO_BOUND)
    peers: list[Peer] = []

    def beat(number: int) -> bytes:
        """20 groups of 1,000 members."""
        consumer = {
            "groupName": f"G{number // 1_000}", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1, "expressionType": "TAG"}],
        }  # fmt: skip
        return json.dumps(
            {"clientID": f"10.0.0.1@{number}#1", "consumerDataSet": [consumer], "producerDataSet": []}
        ).encode()

    def fill() -> None:
        for number in range(count):
            peer = bench.peer()
            peers.append(peer)
            peer.give(RequestCode.HEART_BEAT, {}, beat(number))
            if number % 64 == 0:
                bench.broker.turn()
                for each in peers[-64:]:
                    each.session.take()

    turns = Turns(bench)
    grown(f"{what} with heartbeats, in groups of 1,000", count, fill)
    for number in range(int(600 * share)):
        peer = peers[number]
        turns.timed("a heartbeat", lambda: peer.give(RequestCode.HEART_BEAT, {}, beat(number)))  # noqa: B023
    turns.live(10)
    for peer in peers[: count // 2]:
        turns.timed("a disconnection", lambda: bench.broker.disconnected(peer.session))  # noqa: B023
    turns.turn()
    bench.clock.advance(200_000)
    turns.live(10)
    turns.show(what)
    bench.close()


# --- what waits ---------------------------------------------------------------------------------------------


def parked(folder: Path, share: float) -> None:
    count, topic_count = int(1_000_000 * share), 1_000
    what = f"{count:,} parked long polls"
    room = {
        "max_parked_bytes": NO_BOUND,
        "max_tables_bytes": NO_BOUND,
        "pull_thread_pool_queue_capacity": 2 * count,
    }
    bench = Bench(folder, store_settings=ROOMY, **room)
    peers = [bench.peer() for _ in range(1_000)]
    for topic in range(topic_count):
        accepted(peers[0], SEND, send_ext(f"T{topic}"), b"x")
    bench.flush()
    headers = [pull_ext(f"T{topic}", offset=1, sysFlag="6") for topic in range(topic_count)]

    def fill() -> None:
        for number in range(count):
            peers[number % 1_000].give(PULL, headers[number // 1_000 % topic_count])
            if number % 64 == 0:
                bench.broker.turn()

    turns = Turns(bench)
    grown(what, count, fill)
    turns.live(3)
    turns.timed("a send that wakes", lambda: peers[0].give(SEND, send_ext("T1"), b"x"))
    turns.turn()
    print(f"   woken: {sum(len(peer.heard()) for peer in peers):,}")
    turns.live(20)  # all time out
    turns.show(what)
    for peer in peers:
        peer.session.take()
    bench.close()


def crowd(folder: Path, share: float) -> None:
    count = int(50_000 * share)
    what = f"{count:,} long polls of one queue"
    room = {"max_parked_bytes": NO_BOUND, "pull_thread_pool_queue_capacity": 2 * count}
    bench = Bench(folder, store_settings=ROOMY, **room)
    peers = [bench.peer() for _ in range(1_000)]
    accepted(peers[0], SEND, send_ext("T"), b"x")
    bench.flush()
    for number in range(count):
        peers[number % 1_000].give(PULL, pull_ext("T", offset=1, sysFlag="6"))
        if number % 64 == 0:
            bench.broker.turn()
    turns = Turns(bench)
    turns.timed("a send", lambda: peers[0].give(SEND, send_ext("T"), b"x"))
    turns.turn()
    print(f"   woken: {sum(len(peer.heard()) for peer in peers):,}")
    turns.show(what)
    bench.close()


def parkedpops(folder: Path, share: float) -> None:
    count = int(50_000 * share)
    what = f"{count:,} parked pops, of 15 s each"
    bench = Bench(
        folder,
        store_settings=ROOMY,
        max_parked_bytes=NO_BOUND,
        pop_polling_size=count,
        max_pop_polling_size=count,
    )
    peers = [bench.peer() for _ in range(1_000)]
    accepted(peers[0], SEND, send_ext("T"), b"x")
    bench.flush()
    turns = Turns(bench)

    def poll(number: int) -> None:
        group = f"G{number % 500}"
        peers[number % 1_000].give(
            POP, pop_ext(bench, topic="T", consumerGroup=group, pollTime="15000", initMode="1")
        )
        while bench.broker.work_waits:
            turns.timed("work", bench.broker.work)

    for number in range(count):
        poll(number)
        if number % (count // 150) == 0:
            turns.live(0)
            bench.clock.advance(100)
            turns.timed("tick", bench.broker.tick)
            turns.turn()
    turns.live(16)
    turns.show(what)
    bench.close()


def slave(folder: Path, share: float) -> None:
    topics, groups, queues = int(100_000 * share), int(10_000 * share), 100
    what = f"a slave of {topics:,} topics and {groups * queues:,} offsets"
    config = BrokerConfig(
        max_topics=NO_BOUND, max_topic_table_bytes=NO_BOUND, max_offset_table_bytes=NO_BOUND
    )
    master, clock = Topics(config, SystemClock()), SystemClock()
    for number in range(topics):
        master.put(TopicConfig(topic_name=f"Topic-{number:06d}"))
    offsets = ConsumerOffsets(clock, version_step=1)
    for number in range(groups):
        for queue in range(queues):
            offsets.commit(f"Group-{number:05d}", "Topic", queue, 1_000_000 + queue)
    text = encode_body(finished(offsets.wrapper_in_slices()))
    turns = Longest()
    copied_topics, copied = Topics(config, clock), ConsumerOffsets(clock, version_step=1)

    def steps(name: str, work: Work[Any]) -> Any:
        while True:
            try:
                turns.timed(name, lambda: next(work))
            except StopIteration as end:
                return end.value

    for number in range(3):
        table = {each.name: copy_config(each.config) for each in master}
        steps(f"topics, round {number}", copied_topics.follow(master.data_version, table))
        parts, version = steps(f"offsets decoded, round {number}", offsets_in_slices(text))
        steps(f"offsets followed, round {number}", copied.follow(parts, version))
    turns.show(what)


def cleaning(folder: Path, share: float) -> None:
    count = int(100_000 * share)
    what = f"retention with {count:,} queues"
    settings = ROOMY | {"mapped_file_size_commit_log": 1 << 24, "mapped_file_size_consume_queue": 20_000}
    bench = Bench(folder, store_settings=settings, max_tables_bytes=NO_BOUND)
    store = bench.store
    for _ in range(2):
        for number in range(count):
            record = PendingRecord(
                topic=f"Topic-{number // 8:06d}", queue_id=number % 8, body=b"x" * 100, born_timestamp_ms=1,
                born_host=bytes(8),
            )  # fmt: skip
            store.appender.put(record)
            if number % 64 == 63:
                store.pipeline.commit()
    turns = Turns(bench)
    turns.live(12)
    before = len(store.log.segments)
    store.config.file_reserved_time = 0
    for _ in range(4):
        store.clean_expired()
        turns.live(12)
    print(f"   cleaned: {before - len(store.log.segments)} of {before} segments")
    turns.show(what)
    bench.close()


def wide(folder: Path, share: float) -> None:
    count = int(1_024 * share)
    what = f"a topic of {count:,} queues"
    bench = Bench(folder, store_settings=ROOMY)
    store = bench.store
    turns = Turns(bench)
    for number in range(count):
        record = PendingRecord(topic="T", queue_id=number, body=b"x", born_timestamp_ms=1, born_host=bytes(8))
        turns.timed("its first message", partial(store.appender.put, record))
        turns.timed("its first commit", store.pipeline.commit)
    turns.live(3)
    peer = bench.peer()
    turns.timed("its deletion", lambda: peer.give(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))
    turns.live(20)
    turns.show(what)
    bench.close()


def timers(folder: Path, share: float) -> None:
    count = int(1_000_000 * share)
    what = f"{count:,} timer messages"
    bench = Bench(folder, store_settings=ROOMY)
    peer, now_ms = bench.peer(), bench.clock.now_ms()

    def fill() -> None:
        for number in range(count):
            deliver_ms = now_ms + 600_000 + number % 3_600_000
            peer.give(
                SEND,
                send_ext("T", number % 4, f"TIMER_DELIVER_MS\x01{deliver_ms}\x02"),
                b"x" * 100,
                oneway=True,
            )
            if number % 64 == 0:
                bench.broker.turn()
            if number % 4_096 == 0:
                bench.flush()
                bench.broker.tick()

    turns = Turns(bench)
    grown(what, count, fill)
    turns.live(60)
    bench.clock.advance(600_000 - 60_000)
    turns.live(60)
    turns.show(what)
    reopened(what, bench)


def halves(folder: Path, share: float) -> None:
    count = int(100_000 * share)
    what = f"{count:,} half messages"
    bench = Kit(folder, store_settings=ROOMY)
    turns = Turns(bench)
    grown(what, count, lambda: [bench.prepare(f"U{number}") for number in range(count)])
    for _ in range(40):
        bench.beat()
        turns.live(5)
        bench.producer.session.take()
    turns.show(what)
    reopened(what, bench)


def popped(folder: Path, share: float) -> None:
    count = int(100_000 * share)
    what = f"{count:,} messages handed out by POP"
    bench = Bench(folder, store_settings=ROOMY)
    peer = bench.peer()
    for number in range(count):
        peer.give(SEND, send_ext("T", number % 4), b"x" * 100, oneway=True)
        if number % 64 == 0:
            bench.broker.turn()
    bench.flush()

    def fill() -> None:
        for _ in range(count // 32 + 8):
            peer.give(POP, pop_ext(bench, invisibleTime="60000"))
            while bench.broker.work():
                pass
            bench.broker.turn()
            bench.flush()
        peer.session.take()

    turns = Turns(bench)
    grown(what, count, fill)
    turns.live(55)
    turns.live(30)  # they become visible again
    turns.show(what)
    reopened(what, bench)


# --- name server; log ---------------------------------------------------------------------------------------


def names(folder: Path, share: float) -> None:
    brokers, per_broker = int(200 * share), 5_000
    what = f"name server, {brokers} brokers x {per_broker:,} topics"
    core, clock, first = namesrv_peer(NamesrvConfig(max_routes=NO_BOUND))
    made = registration(0, per_broker, 1)
    peers = [Peer(core, Session(number + 2, "127.0.0.1", 40_001 + number, [])) for number in range(brokers)]
    turns = Longest()

    def fill() -> None:
        for number, peer in enumerate(peers):
            header = made[0] | {
                "brokerName": f"broker-{number:04d}",
                "brokerAddr": f"10.0.{number // 250}.{number % 250}:10911",
            }
            turns.timed("a registration", partial(peer.give, RequestCode.REGISTER_BROKER, header, made[1]))
            while core.work_waits:
                turns.timed("a slice of one", core.work)
            assert peer.heard()[-1].code == 0

    grown(what, brokers * per_broker, fill)
    ask = partial(accepted, first, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Topic-000017"})
    shown(f"{what}, a route of {brokers} brokers", "µs", cost_us(ask, 200))
    for step_ms in (*[1_000] * 30, 200_000):
        clock.advance(step_ms)
        turns.timed("a tick", core.tick)
        while core.work_waits:
            turns.timed("a slice of a tick", core.work)
    turns.show(what)


def sparse(folder: Path, share: float) -> None:
    segments, size = max(4, int(1_024 * share)), 1 << 30
    what = f"a log of {segments} GiB (sparse)"
    log = folder / "commitlog"
    log.mkdir(parents=True)
    now_ms = SystemClock().now_ms()
    for number in range(segments):
        record = encode_record(
            topic="T", body=b"x" * 100, properties=b"KEYS\x01k%d\x02" % number, queue_offset=number,
            physical_offset=number * size, store_timestamp_ms=now_ms - (segments - number) * 60_000,
        )  # fmt: skip
        path = log / f"{number * size:020d}"
        with path.open("wb") as file:
            file.truncate(size)
            file.write(record)
            if number < segments - 1:
                file.write(struct.pack(">ii", size - len(record), BLANK_MAGIC))
        old_s = (now_ms - (segments - number) * 60_000) / 1000
        os.utime(path, (old_s, old_s))
    config = StoreConfig(store_path_root_dir=str(folder), disk_max_used_space_ratio=100)
    store = MessageStore(config, SystemClock(), store_host=encode_host("127.0.0.1", 10911))
    shown(f"{what}, first start, everything derived", "ms", [processor_s(store.open) * 1e3])
    for _ in range(3):
        for job in store.maintenance():
            run_here(job)
        for _ in store.follow_with_index():
            pass
    shown(f"{what}, stop", "ms", [processor_s(store.close) * 1e3])
    store = MessageStore(config, SystemClock(), store_host=encode_host("127.0.0.1", 10911))
    shown(f"{what}, start", "ms", [processor_s(store.open) * 1e3])
    middle_ms = now_ms - segments // 2 * 60_000
    found = store.offsets.offset_by_timestamp("T", 0, middle_ms)
    print(f"   by time: offset {found} of {segments}")
    shown(
        f"{what}, an offset by time",
        "µs",
        cost_us(lambda: store.offsets.offset_by_timestamp("T", 0, middle_ms), 50),
    )

    def by_key() -> list[memoryview]:
        return list(query(store, "T", f"k{segments // 2}", 10, 0, 1 << 62))

    print(f"   by key: {len(by_key())}")
    shown(f"{what}, a query by key", "µs", cost_us(by_key, 50))
    shown(f"{what}, maintenance of a second", "µs", cost_us(store.maintenance, 1))
    config.file_reserved_time = 1
    store.clean_expired()
    before, longest, job_s = len(store.log.segments), 0.0, 0.0
    for _ in range(20):
        began = time.thread_time()
        jobs = store.maintenance()
        longest = max(longest, time.thread_time() - began)
        for job in jobs:
            job_s += processor_s(job.run)
            began = time.thread_time()
            job.done()
            longest = max(longest, time.thread_time() - began)
        store.clean_expired()
    print(f"   cleaned: {before - len(store.log.segments)} of {before} segments")
    shown(f"{what}, cleaned, the longest turn", "ms", [longest / slowness() * 1e3])
    store.close()


ALL = [topics, queues, offsets, slave, connections, parked, crowd, parkedpops, timers, halves, popped]
ALL += [cleaning, wide, names, sparse]
PARTS: dict[str, Callable[[Path, float], None]] = {each.__name__: each for each in ALL}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(PARTS), action="append")
    parser.add_argument("--share", type=float, default=1.0)
    asked = parser.parse_args()
    for name in asked.only or PARTS:
        with tempfile.TemporaryDirectory(prefix="bench-many-") as folder:
            PARTS[name](Path(folder) / "store", asked.share)


if __name__ == "__main__":
    main()
