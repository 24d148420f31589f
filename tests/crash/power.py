"""Scripted runs of a store on a recorded disk, and the check that every image of them has to pass."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mqspark.errors import DiskFull, StoreReadOnly
from mqspark.message import TRANSACTION_PREPARED_TYPE, Message, MessageExt, decode_properties
from mqspark.record.batchitems import encode_batch
from mqspark.record.record import PendingRecord
from mqspark.store import ConfigFile, MessageStore, StoreProgress
from mqspark.store.disk.files import FileLayer, is_disk_full
from mqspark.store.queue.batchqueue import BATCH_DTYPE
from mqspark.store.recovery.recovery import RecoveryReport
from tests.crash.disk import (
    Choice,
    DirectorySynced,
    MemoryFiles,
    Noted,
    Power,
    RecordedFiles,
    Synced,
    Tree,
    digest,
)
from tests.support.clocks import ManualClock
from tests.support.store_tools import (
    complete,
    crash,
    drain,
    finish_deletions,
    make_store,
    put,
    query,
)

ROOT = Path("/disk")
BATCHES = ("Batches", 0)
"""A BatchCQ queue: single messages, and records that hold several."""
QUEUES = [("Orders", 0), ("Orders", 1), ("Other", 0), BATCHES]
SETTINGS = {
    "max_index_num": 24,
    "max_hash_slot_num": 8,
    "mapper_file_size_batch_consume_queue": 5 * BATCH_DTYPE.itemsize,
}
"""The log rolls each 4096 bytes, a queue each 10 messages, a BatchCQ queue each 5 records, the index each 23 keys."""

Place = tuple[str, int, int]
"""Topic, queue id, queue offset."""


@dataclass(frozen=True, slots=True)
class Sent:
    place: Place
    position: int
    body: bytes
    properties: bytes


@dataclass(frozen=True, slots=True)
class Acked:
    """From now on these are there, whatever happens; records before ``begin`` may have been deleted."""

    messages: tuple[Sent, ...]
    begin: int = 0
    ends: tuple[int, ...] = ()
    """Max offsets that were shown, in the order of QUEUES: none may be smaller later."""


@dataclass(frozen=True, slots=True)
class Deleting:
    """A topic, by somebody who has no answer yet: all that was acknowledged is there, or nothing of it."""

    topic: str


@dataclass(frozen=True, slots=True)
class Deleted:
    """From now on nothing of the topic that lies before ``position`` comes back."""

    topic: str
    position: int


@dataclass(frozen=True, slots=True)
class ConfigSaved:
    number: int


def _open(files: FileLayer, *, sync: bool, **settings: object) -> MessageStore:
    return make_store(ROOT, ManualClock(), files, sync=sync, **{**SETTINGS, **settings})


def config_text(number: int) -> bytes:
    topics = {BATCHES[0]: {"attributes": {"queue.type": "BatchCQ"}}}
    return json.dumps({"number": number, "topicConfigTable": topics}).encode()


@dataclass
class Script:
    """Does things to a store, and tells the recording what was promised when."""

    sync: bool = True
    seed: int = 0
    settings: dict[str, object] = field(default_factory=dict)
    files: RecordedFiles = field(default_factory=lambda: RecordedFiles(ROOT))
    sent: dict[Place, list[Sent]] = field(default_factory=dict)
    config_number: int = 0
    tolerant: bool = False
    """Goes on when the disk refuses something; ``told`` says what was told about it."""
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._unacked: list[tuple[int, Sent]] = []
        self._deleting: list[Deleted] = []
        self._count = 0
        if not self.config_number:
            # As in a broker: the table that says BatchCQ is on the disk before the topic is used.
            self.save_config(ConfigFile(ROOT / "config" / "topics.json", self.files))
        self.start()

    def start(self) -> None:
        """What is found at a start is shown to consumers, so it has to stay."""
        self.store = _open(self.files, sync=self.sync, **self.settings)
        self.store.open()
        self.store.appender.use_batch_queues(BATCHES[0])
        self._config = self.store.config_file("topics.json")
        self._unacked.clear()
        self._deleting.clear()
        found = []
        for queue in QUEUES:
            for message in drain(self.store, *queue):
                place = (*queue, message.queue_offset)
                found += [s for s in self.sent[place] if s.position == message.physical_offset]
        ends = tuple(self.store.offsets.max_offset(*queue) for queue in QUEUES)
        self.files.note(Acked(tuple(found), ends=ends))

    def put(self, size: int | None = None, queue: tuple[str, int] | None = None) -> None:
        self._count += 1
        is_half = self._count % 17 == 0
        topic, queue_id = queue or self._chance.choice(QUEUES[:-1] if is_half else QUEUES)
        size = self._chance.choice((5, 60, 300, 700)) if size is None else size
        body = b"%d:" % self._count + self._chance.randbytes(size)
        properties = b"TAGS\x01T%d\x02KEYS\x01k%d\x02" % (self._count % 3, self._count)
        with self._tolerance():
            self._put(topic, queue_id, body, properties)

    @contextlib.contextmanager
    def _tolerance(self) -> Iterator[None]:
        try:
            yield
        except (DiskFull, StoreReadOnly, OSError) as error:
            if not self.tolerant:
                raise
            self.told.append(str(error))

    def _put(self, topic: str, queue_id: int, body: bytes, properties: bytes) -> None:
        if self._count % 17 == 0:  # takes its place in the log, none in a queue
            put(self.store, topic, queue_id, body, properties, sys_flag=TRANSACTION_PREPARED_TYPE)
            return
        offset, position, end = put(self.store, topic, queue_id, body, properties)
        self._look_at_deletions()
        sent = Sent((topic, queue_id, offset), position, body, properties)
        self.sent.setdefault(sent.place, []).append(sent)
        self._unacked.append((end, sent))

    def put_inner_batch(self, count: int) -> None:
        """One record with so many messages."""
        self._count += 1
        bodies = [b"%d:inner %d" % (self._count, number) * 7 for number in range(count)]
        body = encode_batch([Message(topic=BATCHES[0], body=body) for body in bodies])
        with self._tolerance():
            base, position, end = self.store.appender.put_inner_batch(
                PendingRecord(
                    topic=BATCHES[0],
                    queue_id=BATCHES[1],
                    body=body,
                    properties=b"KEYS\x01k%d\x02" % self._count,
                    born_timestamp_ms=1,
                    born_host=bytes(8),
                ),
                count,
            )
            for number, body in enumerate(bodies):
                sent = Sent((*BATCHES, base + number), position, body, b"")
                self.sent.setdefault(sent.place, []).append(sent)
                self._unacked.append((end, sent))

    def put_batch(self, count: int) -> None:
        topic, queue_id = self._chance.choice(QUEUES[:-1])
        items = []
        for _ in range(count):
            self._count += 1
            items.append((0, b"%d:batch" % self._count * 9, b"KEYS\x01k%d\x02" % self._count))
        with self._tolerance():
            self._put_batch(topic, queue_id, items)

    def _put_batch(self, topic: str, queue_id: int, items: list[tuple[int, bytes, bytes]]) -> None:
        first, positions, end = self.store.appender.put_batch(
            PendingRecord(topic=topic, queue_id=queue_id, born_timestamp_ms=1, born_host=bytes(8)), items
        )
        for number, ((_, body, properties), position) in enumerate(zip(items, positions, strict=True)):
            sent = Sent((topic, queue_id, first + number), position, body, properties)
            self.sent.setdefault(sent.place, []).append(sent)
            self._unacked.append((end, sent))

    def commit(self) -> None:
        self._progressed(self.store.pipeline.commit())

    def flush(self, meanwhile: Callable[[], None] | None = None) -> None:
        """``meanwhile``: what the loop does while the worker syncs."""
        self.commit()
        job = self.store.pipeline.begin_flush()
        if job is not None:
            self.files.during_sync = meanwhile
            job.run()
            assert job.error is None or self.tolerant
            self.files.during_sync = None
            self._progressed(self.store.pipeline.end_flush(job))

    def _progressed(self, progress: StoreProgress) -> None:
        """Only what is durable is promised to survive, also where (ASYNC_FLUSH) acks do not wait for it."""
        durable = progress.durable
        assert not self.sync or progress.acked == durable
        acked = tuple(sent for end, sent in self._unacked if end <= durable)
        if acked:
            self._unacked = [item for item in self._unacked if item[0] > durable]
            self.files.note(Acked(acked))

    def checkpoint(self, meanwhile: Callable[[], None] | None = None) -> None:
        self.files.during_sync = meanwhile
        finish_deletions(self.store)
        jobs = self.store.maintenance()
        for _ in self.store.follow_with_index():
            self._hear()  # the next slice may succeed
        complete(jobs)
        self.files.during_sync = None
        assert self.store.condition.read_only is None or self.tolerant
        self._hear()

    def _hear(self) -> None:
        self.told += filter(None, (self.store.status.index_problem, self.store.status.checkpoint_problem))

    def delete_topic(self, topic: str) -> None:
        self.files.note(Deleting(topic))
        self._unacked = [item for item in self._unacked if item[1].place[0] != topic]
        self.store.delete_topic(topic)
        self._deleting.append(Deleted(topic, self.store.log.position))
        self._look_at_deletions()

    def finish_deletions(self, meanwhile: Callable[[], None] | None = None) -> None:
        self.files.during_sync = meanwhile
        finish_deletions(self.store)
        self.files.during_sync = None
        self._look_at_deletions()

    def _look_at_deletions(self) -> None:
        if not self.store.deletions.behind:
            for deleted in self._deleting:
                self.files.note(deleted)
            self._deleting.clear()

    def delete_oldest(self) -> None:
        """Every segment is old enough for retention."""
        self.store.clean_expired()
        for _ in range(3):
            jobs = self.store.maintenance()
            self.files.note(Acked((), begin=self.store.log.min_offset))
            complete(jobs)

    def sync_index(self) -> None:
        self.store.clock.advance(20_000)
        self.checkpoint()

    def save_config(self, file: ConfigFile | None = None) -> None:
        self.config_number += 1
        try:
            (file or self._config).save(config_text(self.config_number))
        except OSError as error:
            if not self.tolerant:
                raise
            self.told.append(str(error))
            if not is_disk_full(error):
                self.commit()
                assert self.store.condition.read_only is not None, "a config file could not be saved"
        else:
            self.files.note(ConfigSaved(self.config_number))

    def kill(self) -> None:
        crash(self.store)
        self.start()

    def stop(self) -> None:
        self.flush()
        self.store.close()
        self._look_at_deletions()
        self.start()


def everyday(sync: bool, seed: int, rounds: int, **settings: object) -> Script:
    """Groups of sends, sends while a sync is under way, checkpoints, config saves, every kind of roll."""
    script = Script(sync, seed, settings)
    run_everyday(script, seed, rounds)
    return script


def run_everyday(script: Script, seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    for number in range(rounds):
        for _ in range(chance.randrange(1, 4)):
            script.put()
        if number % 3 == 2:
            script.put_batch(3)
        if number % 3 == 1:
            script.put_inner_batch(2)

        def meanwhile() -> None:
            script.put()
            script.commit()

        script.flush(meanwhile if number % 2 else None)
        if number % 4 == 3:
            script.save_config()
        if number % 5 == 4:
            script.checkpoint(meanwhile if number % 2 else None)
        if number % 9 == 8:
            script.sync_index()


def retention(sync: bool, seed: int, rounds: int, **settings: object) -> Script:
    """The oldest segments, queue files and index files are deleted while messages come."""
    script = Script(sync, seed, settings)
    for number in range(rounds):
        for _ in range(3):
            script.put(600)
        script.flush()
        if number % 3 == 2:
            script.checkpoint()
        if number % 6 == 5:
            script.delete_oldest()
        if number == rounds // 2:
            script.kill()
    return script


def restarts(sync: bool, seed: int, rounds: int, **settings: object) -> Script:
    """Kills with and without something that was not flushed, and clean stops."""
    script = Script(sync, seed, settings)
    for number in range(rounds):
        for _ in range(4):
            script.put()
        script.flush()
        if number % 2:
            script.put_inner_batch(3)
        script.put()
        if number % 2:
            script.commit()
        if number % 3 == 1:
            script.checkpoint()
        if number % 4 == 3:
            script.stop()
        else:
            script.kill()
    return script


def deletions(sync: bool, seed: int, rounds: int, **settings: object) -> Script:
    """Topics are deleted and made again, at once or later; in between kills, stops and the deletion of old segments."""
    script = Script(sync, seed, settings)
    chance = random.Random(seed)

    def meanwhile() -> None:
        script.put(queue=("Other" if topic == "Orders" else "Orders", 0))
        script.commit()

    for number in range(rounds):
        topic = chance.choice(("Orders", "Other"))
        for _ in range(4):
            script.put()
        script.flush()
        if number % 3 == 1:
            script.sync_index()
        script.put()
        script.delete_topic(topic)
        if chance.random() < 0.3:
            script.put()
        if chance.random() < 0.7:
            script.finish_deletions(meanwhile if number % 2 else None)
        script.put()
        if number % 5 == 2:
            script.delete_oldest()
        if number % 5 == 3:
            script.kill()
        elif number % 7 == 5:
            script.stop()
    return script


# --- images ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Image:
    """A disk after a power cut, and what must be on it."""

    tree: Tree
    event: int
    choice: Choice
    acked: dict[Place, Sent]
    begin: int
    ends: tuple[int, ...]
    config_number: int
    deleting: dict[str, dict[Place, Sent]]
    """What was acknowledged of topics that nobody was told to be deleted."""
    deleted: dict[str, int]


def images(
    script: Script, limit: int, chance: random.Random, before: Image | None = None, *, first_event: int = 0
) -> Iterator[Image]:
    """At every event what a kill leaves; before and after each sync up to ``limit`` things a power cut may leave. No
    image comes twice unless more was promised meanwhile. ``before``: what the script began with."""
    power = Power(script.files)
    acked = dict(before.acked) if before else {}
    begin, config_number = (before.begin, before.config_number) if before else (0, 0)
    ends = before.ends if before else ()
    deleting = dict(before.deleting) if before else {}
    deleted = dict(before.deleted) if before else {}
    seen: set[tuple[object, ...]] = set()
    for number, event in enumerate([*script.files.events, None]):
        is_sync = event is None or isinstance(event, Synced | DirectorySynced)
        choices = power.choices(limit, chance) if is_sync else ({},)
        for choice in choices if number >= first_event else ():
            tree = power.image(choice)
            name = (digest(tree), len(acked), config_number, *deleting, *deleted.items())
            if name not in seen:
                seen.add(name)
                yield Image(
                    tree,
                    number,
                    choice,
                    dict(acked),
                    begin,
                    ends,
                    config_number,
                    dict(deleting),
                    dict(deleted),
                )
        if event is None:
            return
        power.follow(event)
        if isinstance(event, Noted):
            if isinstance(event.what, Acked):
                acked.update((sent.place, sent) for sent in event.what.messages)
                begin = max(begin, event.what.begin)
                ends = event.what.ends or ends
            elif isinstance(event.what, Deleting):
                topic = event.what.topic
                lost = {place: sent for place, sent in acked.items() if place[0] == topic}
                deleting[topic] = deleting.get(topic, {}) | lost
                acked = {place: sent for place, sent in acked.items() if place not in lost}
                ends = tuple(
                    0 if queue[0] == topic else end for queue, end in zip(QUEUES, ends, strict=False)
                )
            elif isinstance(event.what, Deleted):
                deleting.pop(event.what.topic, None)
                deleted[event.what.topic] = event.what.position
            elif isinstance(event.what, ConfigSaved):
                config_number = event.what.number


def images_of_recovery(script: Script, image: Image, limit: int, chance: random.Random) -> Iterator[Image]:
    """The power goes a second time while the store recovers from ``image``, or right after."""
    recovery = Script(
        script.sync,
        script.seed,
        script.settings,
        RecordedFiles(ROOT, image.tree),
        script.sent,
        script.config_number,
    )
    yield from images(recovery, limit, chance, image)


# --- check -----------------------------------------------------------------------------------------------------


def _served(store: MessageStore) -> dict[Place, MessageExt]:
    return {
        (topic, queue_id, m.queue_offset): m
        for topic, queue_id in QUEUES
        for m in drain(store, topic, queue_id)
    }


_MARKS = ("abort", "checkpoint", "index", "lock")


def _truth(tree: Tree) -> Tree:
    """Log and queues, wherever they lie."""
    return {
        name: content
        for name, content in tree.items()
        if name not in _MARKS and not name.startswith("mqspark.")
    }


def _has(message: MessageExt, sent: Sent) -> bool:
    return all(
        message.properties.get(name) == value for name, value in decode_properties(sent.properties).items()
    )


def opened_image(script: Script, files: MemoryFiles) -> tuple[MessageStore, RecoveryReport]:
    """A store of an image, started as the script starts its own."""
    store = _open(files, sync=script.sync, **script.settings)
    return store, store.open()


def check(script: Script, image: Image, files: MemoryFiles | None = None) -> None:
    """Raises AssertionError. ``files``: where the image lies, if it matters."""
    files = files or MemoryFiles(ROOT, image.tree)
    store, report = opened_image(script, files)
    served = _served(store)
    for place, m in served.items():
        assert any(
            (sent.position, sent.body) == (m.physical_offset, m.body) and _has(m, sent)
            for sent in script.sent.get(place, ())
        ), f"{place} at {m.physical_offset} was never sent"
    acked = dict(image.acked)
    for topic, position in image.deleted.items():
        old = [place for place, m in served.items() if place[0] == topic and m.physical_offset < position]
        assert not old, f"{old} is back"
    for topic, lost in image.deleting.items():
        if any(store.offsets.max_offset(*queue) for queue in QUEUES if queue[0] == topic):
            acked |= lost
    for place, sent in acked.items():
        if sent.position >= image.begin:
            assert place in served, f"acknowledged at {place} ({sent.position}) and lost"
            assert served[place].body == sent.body, f"acknowledged at {place}, replaced"
        assert store.offsets.max_offset(*place[:2]) > place[2], f"the offset of {place} comes again"
    ends = {}
    for topic, queue_id in QUEUES:
        low, high = (
            max(store.offsets.min_offset(topic, queue_id), 0),
            store.offsets.max_offset(topic, queue_id),
        )
        ends[topic, queue_id] = high
        for offset in range(low, high):
            if (topic, queue_id, offset) not in served:
                if (topic, queue_id) != BATCHES:  # whose entries say which offsets they have
                    entry = store.table.queues[topic, queue_id].entry(offset)
                    assert entry is not None
                    assert entry[1:] == (0x7FFFFFFF, 0), "a hole"
                assert (topic, queue_id, offset) not in acked
    for queue, end in zip(QUEUES, image.ends, strict=False):
        assert store.offsets.max_offset(*queue) >= end, f"{queue} had {end} messages before"
    config = ConfigFile(ROOT / "config" / "topics.json", files).load()
    number = int(json.loads(config)["number"]) if config else 0
    assert image.config_number <= number <= script.config_number
    assert config is None or config == config_text(number)

    crash(store)
    before = _truth(files.tree())
    store = _open(files, sync=script.sync, **script.settings)
    again = store.open()
    assert _truth(files.tree()) == before, "the second recovery changed something"
    assert (again.torn_bytes, again.cleared_entries) == (0, 0), again
    assert again.end_position == report.end_position
    assert _served(store) == served, "the second recovery shows something else"
    for sent in [*image.acked.values()][-2:]:
        if sent.position >= image.begin and sent.properties:
            _, _, key = sent.properties.partition(b"KEYS\x01")
            found = query(store, sent.place[0], key[:-1].decode(), 64, 0, 1 << 62)
            assert any(sent.body in bytes(record) for record in found), (
                f"{sent.place} is not found by its key"
            )
    for queue, end in ends.items():
        assert put(store, *queue, b"new")[0] == end
    store.pipeline.commit()
    job = store.pipeline.begin_flush()
    assert job is not None
    job.run()
    store.pipeline.end_flush(job)
    for queue, end in ends.items():
        (last,) = drain(store, *queue, begin=end)
        assert (last.queue_offset, last.body) == (end, b"new")
    crash(store)


PARTS = 4
"""Parts of a run over all images: a part a test, so that it can be shared out, and gone on with after an end."""


def assert_part(script: Script, part: int, *, at_least: int) -> None:
    """Every PARTS-th image, of up to 400 for a sync."""
    every = images(script, 400, random.Random(script.seed))
    assert_images(script, 400, at_least=at_least, found=itertools.islice(every, part, None, PARTS))


def assert_images(script: Script, limit: int, *, at_least: int, found: Iterator[Image] | None = None) -> None:
    """Check all images (or those ``found``); the first that does not pass tells how it came about."""
    count = 0
    for image in found or images(script, limit, random.Random(script.seed)):
        count += 1
        try:
            check(script, image)
        except Exception as error:
            raise AssertionError(f"{error}\n{describe(image, script)}") from error
    print(f"{count} images")
    assert count >= at_least, f"only {count} images"


def describe(image: Image, script: Script) -> str:
    """For the person who has to find out why."""
    lines = [f"event {image.event} of {len(script.files.events)}, {len(image.acked)} acknowledged"]
    names = {
        id(node): f"{path}/{name}"
        for path, directory in script.files.directories.items()
        for name, node in directory.entries.items()
    }
    for (thing, part), version in image.choice.items():
        name = names.get(id(thing)) or next(
            (p for p, d in script.files.directories.items() if d is thing), f"gone {id(thing)}"
        )
        lines.append(f"  {name} [{part}]: version {version}")
    return "\n".join(lines)
