"""Threat: damage in the middle of a store that a start cannot see without reading everything: consumers skip messages,
and nobody is told. The broker finds it in the background, within a bandwidth.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from mqspark.record.record import tags_code
from mqspark.store import MessageStore
from mqspark.testing import Broker
from tests.security.store.damage_table import DAMAGE, MESSAGES, SETTINGS
from tests.support import web
from tests.support.clocks import ManualClock
from tests.support.store_tools import QuickFiles, complete, copy_store, drain, flush, opened, put


def scrubbed_health(url: str | None) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while True:
        health: dict[str, Any] = web.get(f"{url}/health/ready").json()["store"]
        if health["scrub"]["done"]:
            return health
        assert time.monotonic() < deadline, health["scrub"]
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "said", "lost"),
    [
        ("none", [], (0, 0)),
        ("entries in the middle of a queue are flipped", [("queue.differs", "healed")], (0, 0)),
        ("a segment in the middle is zeroed", [("log.damaged", "lost")], (20, 27)),
        ("a segment in the middle is a copy of another", [("log.damaged", "lost")], (20, 27)),
        ("a segment in the middle is missing", [("log.gap", "lost")], (20, 27)),
    ],
)
def test_the_background_finds_what_a_start_cannot(
    sound_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    said: list[tuple[str, str]],
    lost: tuple[int, int],
) -> None:
    monkeypatch.setattr("mqspark_server.process.diskwork.HOUSEKEEPING_S", 0.02)  # a slice of 4 KB a round
    root = tmp_path / "store"
    copy_store(sound_store, root)
    DAMAGE[name](root)
    settings = {key: value for key, value in SETTINGS.items() if key != "scrubBytesPerSecond"}
    with Broker(store=root, settings=settings, http=True) as broker:
        health = scrubbed_health(broker.http_url)
        store = broker.apps[0].store
        found = broker.call(lambda: drain(store, "Orders", 0))
    assert sorted({(each["kind"], each["outcome"]) for each in health["damage"]}) == said
    queues = {tuple(queue.values()) for each in health["damage"] for queue in each["queues"]}
    assert queues == ({("Orders", 0, *lost)} if lost[1] else set())
    bodies = [int(message.body[:6]) for message in found]
    assert bodies == [*range(lost[0]), *range(lost[1], MESSAGES)]


def step(store: MessageStore) -> None:
    complete(store.maintenance())


def filled(root: Path, **settings: Any) -> Path:
    store = opened(root, None, QuickFiles(), **settings)
    for number in range(200):
        put(store, "T", number % 2, b"%04d" % number * 30)
    flush(store)
    store.close()
    return root


def test_it_reads_no_more_than_the_bandwidth(tmp_path: Path) -> None:
    filled(tmp_path)
    clock = ManualClock()
    store = opened(tmp_path, clock, QuickFiles(), scrub_bytes_per_second=2048)
    positions = [store.upkeep.scrub.position]
    while not store.upkeep.scrub.done:
        step(store)
        step(store)  # at once again: it is not its time yet
        positions.append(store.upkeep.scrub.position)
        clock.advance(1000)
        assert len(positions) < 100
    assert max(after - before for before, after in itertools.pairwise(positions)) <= 2048
    assert store.damages.found == []
    store.close()


class CountingFiles(QuickFiles):
    """Counts the bytes that are read at positions."""

    read_bytes = 0

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        self.read_bytes += len(buffer)
        return super().read_into(fd, buffer, offset)


def test_a_slice_that_ends_within_a_record_is_not_searched_beyond_its_end(tmp_path: Path) -> None:
    store = opened(tmp_path, None, QuickFiles(), mapped_file_size_commit_log=1 << 20)
    for number in range(2_000):
        put(store, "T", number % 2, b"%04d" % number * 30)
    flush(store)
    store.close()
    clock, files = ManualClock(), CountingFiles()
    store = opened(tmp_path, clock, files, mapped_file_size_commit_log=1 << 20, scrub_bytes_per_second=32_768)
    files.read_bytes, log_bytes = 0, store.log.position
    while not store.upkeep.scrub.done:
        step(store)
        clock.advance(1000)
    assert log_bytes <= files.read_bytes < 8 * log_bytes
    store.close()


def test_entries_are_healed_slice_by_slice_and_stay_healed(tmp_path: Path) -> None:
    filled(tmp_path)
    for path in sorted((tmp_path / "consumequeue/T/1").iterdir())[2:5]:
        data = path.read_bytes()
        path.write_bytes(data[:20] + data[20:180][::-1] + data[180:])  # eight entries are something else
    clock = ManualClock()
    store = opened(tmp_path, clock, QuickFiles(), scrub_bytes_per_second=1024)
    while not store.upkeep.scrub.done:
        step(store)
        clock.advance(1000)
    assert store.upkeep.scrub.healed == 24
    assert [int(message.body[:4]) for message in drain(store, "T", 1)] == list(range(1, 200, 2))
    store.close()
    again = opened(tmp_path, None, QuickFiles())
    assert len(drain(again, "T", 1)) == 100
    again.close()


def test_tags_codes_are_compared(tmp_path: Path) -> None:
    store = opened(tmp_path, None, QuickFiles())
    for number in range(20):
        put(store, "T", 0, b"%d" % number, b"TAGS\x01wanted\x02")
    flush(store)
    store.close()
    path = sorted((tmp_path / "consumequeue/T/0").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[4 * 20 + 19] ^= 0x01
    path.write_bytes(data)

    def filtered(store: MessageStore) -> int:
        return store.reads.get("T", 0, 0, 10, 1 << 20, frozenset({tags_code(b"TAGS\x01wanted\x02")})).count

    store = opened(tmp_path, None, QuickFiles(), scrub_bytes_per_second=1 << 20)
    assert filtered(store) == 9
    while not store.upkeep.scrub.done:
        step(store)
    assert filtered(store) == 10
    assert store.upkeep.scrub.healed == 1
    store.close()


def test_a_topic_that_was_made_again_keeps_its_messages(tmp_path: Path) -> None:
    """The log still has what the first topic of that name had at the same offsets."""
    filled(tmp_path)
    store = opened(tmp_path, None, QuickFiles())
    store.delete_topic("T")
    put(store, "T", 1, b"second life")
    flush(store)
    store.close()
    for name in ("mqspark.deletions", "mqspark.deletions.bak"):
        (tmp_path / name).unlink(missing_ok=True)
    clock = ManualClock()
    store = opened(tmp_path, clock, QuickFiles())
    while not store.upkeep.scrub.done:
        step(store)
        clock.advance(1000)
    assert [message.body for message in drain(store, "T", 1)] == [b"second life"]
    assert store.upkeep.scrub.healed == 0
    store.close()
