"""The index after a power cut: of what was written since its last sync any part may be on disk, in any order.

The log is whole in these images, so every key must be found again, whatever the index files look like.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mqspark.record.record import decode_record
from mqspark.store import MessageStore
from tests.support.clocks import ManualClock
from tests.support.draws import some
from tests.support.store_tools import QuickFiles, checkpoint, crash, flush, opened, put, query

PAGE_BYTES = 64
"""Far smaller than a real page, so that small files have many."""


def put_keys(store: MessageStore, low: int, high: int) -> None:
    for n in range(low, high):
        put(store, "T", n % 3, b"%d" % n, b"UNIQ_KEY\x01u%d\x02KEYS\x01k%d group%d\x02" % (n, n, n % 7))
        flush(store)


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def mixed(rng: random.Random, old: bytes, new: bytes) -> bytes:
    """Pages of both."""
    share = rng.random()
    old = old.ljust(len(new), b"\0")
    return b"".join(
        (new if rng.random() < share else old)[at : at + PAGE_BYTES] for at in range(0, len(new), PAGE_BYTES)
    )


def assert_every_key_is_found(store: MessageStore, count: int) -> None:
    for n in range(count):
        for key in (f"u{n}", f"k{n}"):
            found = {decode_record(record).body for record in query(store, "T", key, 64, 0, 1 << 62)}
            assert found == {b"%d" % n}, key
    for group in range(7):
        records = query(store, "T", f"group{group}", 64, 0, 1 << 62)
        assert [int(decode_record(record).body) for record in records] == list(range(group, count, 7))


MORE = pytest.mark.slow("more seeds; 0 is the fast twin")
SEEDS = [0, *(pytest.param(seed, marks=MORE) for seed in (1, 2, 3))]


@pytest.mark.parametrize("synced_at", some([0, 1, 5, 11, 30], 2))
@pytest.mark.parametrize("seed", SEEDS)
def test_every_key_is_found_after_a_power_cut(tmp_path: Path, synced_at: int, seed: int) -> None:
    rng = random.Random(synced_at * 100 + seed)
    clock = ManualClock()
    store = opened(tmp_path / "made", clock, QuickFiles())
    put_keys(store, 0, synced_at)
    if synced_at:
        clock.advance(20_000)
        checkpoint(store)
    before = snapshot(tmp_path / "made")
    assert ("mqspark.index" in before) == (synced_at > 0)
    put_keys(store, synced_at, 60)
    store.maintenance()
    after = snapshot(tmp_path / "made")
    crash(store)
    for number in range(12):
        root = tmp_path / str(number)
        for name, content in after.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.startswith("index/"):
                if name not in before and rng.random() < 0.3:
                    if rng.random() < 0.5:
                        path.write_bytes(b"")
                    continue
                content = mixed(rng, before.get(name, b""), content)
            elif name.startswith(("mqspark.", "checkpoint")):
                content = before.get(name, b"")
                if not content:
                    continue
            path.write_bytes(content)
        clock.advance(1000)
        store = opened(root, clock, QuickFiles())
        assert_every_key_is_found(store, 60)
        put_keys(store, 60, 70)
        assert_every_key_is_found(store, 70)
        crash(store) if number % 2 else store.close()
        store = opened(root, clock, QuickFiles())
        assert_every_key_is_found(store, 70)
        store.close()
