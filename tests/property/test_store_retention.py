"""Random lives of a store that deletes its past: what is left is what the log still has, at its offsets, for ever."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqspark.store import MessageStore
from tests.support.clocks import ManualClock
from tests.support.draws import draws
from tests.support.store_tools import RoomyFiles, checkpoint, crash, drain, flush, make_store
from tests.support.store_tools import put as put_message

QUEUES = st.tuples(st.sampled_from(["A", "B"]), st.integers(0, 1))


class AgeingStore(RuleBasedStateMachine):
    store: MessageStore

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="store-retention"))
        self.clock = ManualClock()
        self.files = RoomyFiles(self.clock)
        self.written: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        """Physical offset and body."""
        self.came_back = False
        """Segments that could not be unlinked were found again: no queue speaks of what they hold."""

    @initialize(sync=st.booleans(), queue_file=st.sampled_from([60, 200]))
    def start(self, sync: bool, queue_file: int) -> None:
        self.sizes = {"mapped_file_size_commit_log": 1024, "mapped_file_size_consume_queue": queue_file}
        self.sync = sync
        self._open()
        for number in range(30):
            self.put(("AB"[number % 2], number % 4 // 2), [b"x" * (number * 9)])

    def _open(self) -> None:
        self.store = make_store(
            self.root,
            self.clock,
            self.files,
            sync=self.sync,
            delete_when="",
            max_mapped_files=3,
            **self.sizes,
        )
        report = self.store.open()
        self.came_back |= bool(self.files.kept)
        self.files.kept = False
        assert (report.damaged, report.lost_entries, report.ignored_records) == ([], 0, 0)

    @rule(key=QUEUES, bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=8))
    def put(self, key: tuple[str, int], bodies: list[bytes]) -> None:
        for body in bodies:
            messages = self.written.setdefault(key, [])
            offset, position, _ = put_message(self.store, *key, body, b"KEYS\x01k\x02")
            assert offset == len(messages)
            messages.append((position, body))
        flush(self.store)

    @rule()
    def checkpoint(self) -> None:
        checkpoint(self.store)

    @rule(count=st.integers(0, 12), unlinks=st.integers(-1, 3), rounds=st.integers(1, 3))
    def delete(self, count: int, unlinks: int, rounds: int) -> None:
        self.files.expired = {segment.path.name for segment in self.store.log.segments[:count]}
        self.files.unlinks_left = unlinks
        self.store.clean_expired()
        for _ in range(rounds):
            checkpoint(self.store)
            self.clock.advance(10_000)
        self.files.unlinks_left = -1
        assert self.store.condition.read_only is None
        assert self.store.status.index_problem is None

    @rule()
    def crash_in_a_job(self) -> None:
        """Segments have left the list; their files go, and nobody hears of it."""
        self.files.expired = {segment.path.name for segment in self.store.log.segments[:2]}
        self.store.clean_expired()
        for job in self.store.maintenance():
            job.run()
        crash(self.store)
        self._open()

    @rule(ms=st.integers(1, 30_000))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        if kill:
            crash(self.store)
        else:
            self.store.close()
        self._open()

    @invariant()
    def what_the_log_has_is_served(self) -> None:
        if not hasattr(self, "store"):
            return
        start = self.store.log.min_offset
        for key, messages in self.written.items():
            assert self.store.offsets.max_offset(*key) == len(messages)
            served = [(message.physical_offset, message.body) for message in drain(self.store, *key)]
            left = [message for message in messages if message[0] >= start]
            assert served == left[len(left) - len(served) :]
            queue = self.store.table.queues[key]
            if not self.came_back:
                assert len(served) == len(left)
            assert len(messages) * 20 <= queue.file_starts[-1] + self.sizes["mapped_file_size_consume_queue"]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.root)


TestAgeingStore = AgeingStore.TestCase
TestAgeingStore.settings = settings(max_examples=draws(60), stateful_step_count=30)
