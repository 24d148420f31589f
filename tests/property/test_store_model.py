"""Random lives of a store against a model: what was written is there, at its offset, for ever, whatever
happens between."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqspark.message import java_hash
from mqspark.store import GetStatus, MessageStore, StoreReader
from tests.support.clocks import ManualClock
from tests.support.draws import draws
from tests.support.invariants import validate
from tests.support.store_tools import checkpoint, crash, drain, finish_deletions, make_store, pending
from tests.support.store_tools import put as put_message

TOPICS = ["A", "Long" * 40]  # the second is stored as V2
QUEUES = st.tuples(st.sampled_from(TOPICS), st.integers(0, 1))
BODIES = st.binary(max_size=700)
TAGS = st.sampled_from(["", "red", "blue"])

Stored = tuple[bytes, str, int]
"""body, tag, store time"""


class StoreLife(RuleBasedStateMachine):
    store: MessageStore

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="store-model"))
        self.clock = ManualClock()
        self.written: dict[tuple[str, int], list[Stored]] = {}
        self.visible: dict[tuple[str, int], int] = {}
        self.pending: list[tuple[tuple[str, int], Stored]] = []
        self.dying: dict[tuple[str, int], list[Stored]] = {}
        """Queues of topics whose deletion is not on disk: a kill brings them back, whole."""
        self.deleted: set[str] = set()
        """Since the last kill or end, whether they had messages or not."""

    @initialize(
        sync=st.booleans(), segment=st.sampled_from([2048, 4096]), queue_file=st.sampled_from([60, 400])
    )
    def start(self, sync: bool, segment: int, queue_file: int) -> None:
        self.sync = sync
        self.sizes = {"mapped_file_size_commit_log": segment, "mapped_file_size_consume_queue": queue_file}
        self._open()

    def _open(self) -> None:
        self.store = make_store(self.root, self.clock, sync=self.sync, max_mapped_files=3, **self.sizes)
        report = self.store.open()
        assert (report.damaged, report.lost_entries, report.ignored_records) == ([], 0, 0)
        self.visible = {key: len(messages) for key, messages in self.written.items()}

    def _commit(self) -> None:
        """Until the files have everything: under SYNC_FLUSH it is the flush that writes."""
        progress = self.store.pipeline.commit()
        assert progress.failed is None
        self._see(progress.arrivals)
        if self.sync:
            self.flush()
        else:
            self._note_written()

    def _note_written(self) -> None:
        for key, message in self.pending:
            self.written.setdefault(key, []).append(message)
        self.pending.clear()

    def _see(self, arrivals: list[tuple[str, int, int]]) -> None:
        for topic, queue_id, max_offset in arrivals:
            assert max_offset > self.visible.get((topic, queue_id), 0)
            self.visible[topic, queue_id] = max_offset

    def _expect(self, key: tuple[str, int], offset: int) -> None:
        behind = sum(1 for other, _ in self.pending if other == key)
        assert offset == len(self.written.get(key, [])) + behind

    @rule(key=QUEUES, body=BODIES, tag=TAGS)
    def put(self, key: tuple[str, int], body: bytes, tag: str) -> None:
        properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
        offset, physical, end = put_message(self.store, *key, body, properties)
        self._made_again(key[0])
        self._expect(key, offset)
        assert end > physical
        # A roll writes what was pending before it: a crash keeps that part, so the model commits first.
        self.pending.append((key, (body, tag, self.store.appender.next_store_time_ms)))
        if len(self.store.log.pending) == 5 and len(self.pending) > 1:
            self._commit()

    @rule(key=QUEUES, bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=6), tag=TAGS)
    def put_batch(self, key: tuple[str, int], bodies: list[bytes], tag: str) -> None:
        properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
        first, positions, _ = self.store.appender.put_batch(
            pending(key[0], key[1]), [(0, body, properties) for body in bodies]
        )
        self._made_again(key[0])
        self._expect(key, first)
        assert positions == sorted(positions)
        assert positions[0] // self.sizes["mapped_file_size_commit_log"] == (
            positions[-1] // self.sizes["mapped_file_size_commit_log"]
        ), "a batch lies in one segment"
        self.pending += [(key, (body, tag, self.store.appender.next_store_time_ms)) for body in bodies]
        self._commit()

    @rule()
    def commit(self) -> None:
        if self.sync:
            assert self.store.pipeline.commit().arrivals == []
        else:
            self._commit()

    @rule()
    def flush(self) -> None:
        job = self.store.pipeline.begin_flush()
        if job is not None:
            job.run()
            if self.sync:
                self._note_written()
            progress = self.store.pipeline.end_flush(job)
            assert progress.failed is None
            self._see(progress.arrivals)

    @rule()
    def checkpoint(self) -> None:
        checkpoint(self.store)
        self.dying.clear()

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        self.store.delete_topic(topic)
        self.deleted.add(topic)
        self._note_written()
        self._see(self.store.pipeline.commit().arrivals)
        for key in [key for key in self.written if key[0] == topic]:
            self.dying[key] = self.written.pop(key)
            self.visible.pop(key, None)

    @rule()
    def finish_deletions(self) -> None:
        finish_deletions(self.store)
        self.dying.clear()

    def _made_again(self, topic: str) -> None:
        """A topic that is made again waits until its deletion, and all others with it, are on disk."""
        if topic in self.deleted and not any(dying == topic for dying, _ in self.dying):
            finish_deletions(self.store)  # without messages: it may have had queues, or none to wait for
        if topic in self.deleted:
            self.dying.clear()

    @rule(ms=st.integers(-5000, 5000))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def restart(self) -> None:
        self._commit()
        self.store.close()
        self.dying.clear()
        self.deleted.clear()
        self._open()

    @rule()
    def kill(self) -> None:
        self.pending.clear()
        self._crash()
        self._open()

    def _crash(self) -> None:
        crash(self.store)
        self.written |= self.dying
        self.dying.clear()
        self.deleted.clear()

    @rule(kill=st.booleans())
    def lose_all_queues(self, kill: bool) -> None:
        self._commit()
        if kill:
            self._crash()
        else:
            self.store.close()
            self.dying.clear()
        shutil.rmtree(self.root / "consumequeue")
        self._open()

    @precondition(lambda self: any(self.visible.values()))
    @rule(data=st.data())
    def read_somewhere(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key for key, count in self.visible.items() if count)))
        messages = self.written[key][: self.visible[key]]
        offset = data.draw(st.integers(0, len(messages) - 1))
        limit = data.draw(st.integers(1, 8))
        max_bytes = data.draw(st.integers(1, 3000))
        tag = data.draw(st.sampled_from(["red", "blue"]))
        result = self.store.reads.get(*key, offset, limit, max_bytes)
        assert result.status is GetStatus.FOUND
        assert 1 <= result.count <= limit
        assert result.count == 1 or result.size_bytes <= max_bytes
        assert result.next_offset == offset + result.count
        matching = [m.queue_offset for m in drain(self.store, *key, tag_codes=frozenset([java_hash(tag)]))]
        assert matching == [index for index, message in enumerate(messages) if message[1] == tag]
        times_ms = [message[2] for message in messages]
        if times_ms != sorted(times_ms):
            return  # the clock went back: what is found by time is any of several places
        time_ms = times_ms[offset] + data.draw(st.integers(-2, 2))
        first_at = next((i for i, m in enumerate(messages) if m[2] >= time_ms), len(messages))
        last_at = next((i for i in reversed(range(len(messages))) if messages[i][2] <= time_ms), 0)
        assert self.store.offsets.offset_by_timestamp(*key, time_ms) == first_at
        assert self.store.offsets.offset_by_timestamp(*key, time_ms, upper=True) == last_at

    @invariant()
    def all_visible_is_served(self) -> None:
        if not hasattr(self, "store"):
            return
        validate(self.store)
        for key in itertools.product(TOPICS, range(2)):
            messages = self.written.get(key, [])
            served = drain(self.store, *key)
            assert len(served) == self.visible.get(key, 0) == self.store.offsets.max_offset(*key)
            for offset, (message, (body, tag, time_ms)) in enumerate(zip(served, messages, strict=False)):
                assert (message.queue_offset, message.body, message.tags or "") == (offset, body, tag)
                assert (message.topic, message.queue_id, message.store_timestamp_ms) == (*key, time_ms)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self._commit()
            self.store.close()
            reader = StoreReader(self.root)
            for (topic, queue_id), messages in self.written.items():
                entries = reader.entries(topic, queue_id, 0, len(messages) + 5)
                assert len(entries) == len(messages)
                for position, size, _ in entries.tolist():
                    assert int.from_bytes(reader.record(position, 4), "big") == size
        shutil.rmtree(self.root)


TestStoreLife = StoreLife.TestCase
TestStoreLife.settings = settings(max_examples=draws(60), stateful_step_count=40)
