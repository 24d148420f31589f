"""Keys that the index is told when their records are stored: it has to be the same as one that has read them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark.base.config import INT64_MAX
from mqspark.errors import DiskFull
from mqspark.store import MessageStore
from mqspark.store.index import aheadkeys, indexer
from mqspark.store.index.aheadkeys import AheadKeys, KeyForm
from mqspark.store.index.indexfile import IndexFile
from mqspark.store.log import logwindow
from mqspark.store.messages.append import PlainForm
from tests.support.clocks import ManualClock
from tests.support.store_tools import BORN_HOST, crash, flush, opened, pending, put
from tests.unit.store.index.index_kit import asked

AFTER = b"\x02WAIT\x01true\x02"
SEEDS = [
    0,
    *(pytest.param(seed, marks=pytest.mark.slow("more seeds; 0 is the fast twin")) for seed in (1, 2)),
]


def unique_id(n: int, length: int = 32) -> bytes:
    return b"%0*X" % (length, n)


def properties_of(key: bytes, tag: str) -> bytes:
    return b"UNIQ_KEY\x01%b%b%b" % (key, AFTER, f"TAGS\x01{tag}\x02".encode() if tag else b"")


def plain_form(topic: str, tag: str, length: int) -> PlainForm:
    properties = properties_of(unique_id(0, length), tag)
    record = pending(topic, 0, b"x", properties)
    return PlainForm.of(record, b"UNIQ_KEY\x01", properties[len(b"UNIQ_KEY\x01") + length :])


def put_plain(
    store: MessageStore,
    first: int,
    count: int,
    *,
    runs: bool,
    topic: str = "T",
    tag: str = "",
    length: int = 32,
) -> None:
    """Messages with these unique ids; without ``runs`` one after the other, as the index does not know their keys."""
    form = plain_form(topic, tag, length)
    done = first
    while done < first + count:
        if runs:
            places, _ = store.appender.put_run(
                BORN_HOST,
                [(form, n % 3, 1, unique_id(n, length), b"%d" % n, None) for n in range(done, first + count)],
            )
            assert places
            done += len(places)
        else:
            put(store, topic, done % 3, b"%d" % done, properties_of(unique_id(done, length), tag))
            done += 1


def put_some(store: MessageStore, clock: ManualClock, seed: int, *, runs: bool) -> int:
    """Returns how many were put."""
    rng, done = random.Random(seed), 0
    for _ in range(60):
        count = rng.choice((1, 1, 3, 9, 40))
        kind = rng.randrange(8)
        if kind == 0:
            put(store, "T", 0, b"%d" % done, b"UNIQ_KEY\x01%b\x02KEYS\x01a b\x02" % unique_id(done))
            count = 1
        else:
            tag, length = rng.choice(("", "", "A", "B")), 31 if kind == 1 else 32
            topic = "U" if kind == 2 else "T"
            put_plain(store, done, count, runs=runs, topic=topic, tag=tag, length=length)
        done += count
        if rng.randrange(3):
            flush(store)
            clock.mono_ms += 100
        if not rng.randrange(3):
            clock.wall_ms += rng.randrange(3000)
        if not rng.randrange(4):
            for _ in range(rng.randrange(8)):
                store.catch_up()
                store.maintenance()
                for _ in store.follow_with_index():
                    pass
    flush(store)
    return done


def index_bytes(store: MessageStore) -> list[bytes]:
    root = Path(store.config.store_path_root_dir)
    store.close()
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


@pytest.fixture
def records_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many each slice of the index reads."""
    counts: list[int] = []
    read_run = logwindow.LogWindow.read_run

    def counted(self: logwindow.LogWindow, *args: Any, **named: Any) -> Any:
        run = read_run(self, *args, **named)
        counts.append(0 if run is None else len(run.positions))
        return run

    monkeypatch.setattr(logwindow.LogWindow, "read_run", counted)
    return counts


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("least", [2, 30, aheadkeys.LEAST_RECORDS])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_index_that_was_told_is_that_which_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    records_read: list[int],
    seed: int,
    least: int,
    sync: bool,
) -> None:
    monkeypatch.setattr(aheadkeys, "LEAST_RECORDS", least)
    found, read = [], []
    for runs in (True, False):
        clock = ManualClock()
        settings = {"max_index_num": 300, "mapped_file_size_commit_log": 1 << 16}
        store = opened(tmp_path / str(runs), clock, sync=sync, **settings)
        records_read.clear()
        count = put_some(store, clock, seed, runs=runs)
        found.append(index_bytes(store))
        read.append(sum(records_read))
    assert len(found[0]) > 2
    assert found[0] == found[1]
    assert read[1] >= count
    if least < 100:
        assert read[0] < read[1]


def test_records_of_plain_messages_are_not_read(tmp_path: Path, records_read: list[int]) -> None:
    store = opened(tmp_path, max_index_num=5000, mapped_file_size_commit_log=1 << 20)
    for first in range(0, 600, 40):
        put_plain(store, first, 40, runs=True, tag="A")
        flush(store)
    assert asked(store, unique_id(7).decode()) == [b"7"]
    assert len(asked(store, unique_id(599).decode())) == 1
    assert sum(records_read) <= 3, "the first of each queue makes room, and is the end of a run"


def test_as_many_known_keys_are_collected_as_a_stage_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_bytes = 1000
    monkeypatch.setattr(indexer, "_STEP_BYTES", step_bytes)
    monkeypatch.setattr(indexer, "perf_counter", lambda: 0.0)  # no stage takes too long
    clock = ManualClock()
    store = opened(tmp_path, clock, max_index_num=50_000, mapped_file_size_commit_log=1 << 22)
    collected: list[int] = []
    for first in range(0, 6000, 600):
        put_plain(store, first, 600, runs=True)
        flush(store)
        for _ in range(4):
            clock.mono_ms += 100
            store.catch_up()
        assert store.data.indexer is not None
        collected.append(store.data.indexer.next_end - store.log.written)
    assert max(collected) > 30 * step_bytes
    assert len(asked(store, unique_id(5999).decode())) == 1


def test_keys_that_were_not_kept_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aheadkeys, "MAX_RECORDS", 50)
    store = opened(tmp_path, max_index_num=5000)
    indexer = store.data.indexer
    assert indexer is not None
    put_plain(store, 0, 400, runs=True)
    assert 0 < indexer.ahead.records <= 50 + 400
    put_plain(store, 400, 400, runs=True)
    put_plain(store, 800, 9, runs=True)
    assert indexer.ahead.records < 50 + 400, "none is added to too many"
    flush(store)
    for n in range(809):
        assert asked(store, unique_id(n).decode()) == [b"%d" % n]
    put_plain(store, 809, 9, runs=True)
    assert indexer.ahead.records > 0, "there is room again"


def test_a_crash_and_a_restart_lose_no_key(tmp_path: Path) -> None:
    store = opened(tmp_path, max_index_num=5000)
    put_plain(store, 0, 100, runs=True)
    flush(store)
    assert asked(store, unique_id(99).decode()) == [b"99"]
    put_plain(store, 100, 100, runs=True, tag="A")
    flush(store)
    crash(store)
    store = opened(tmp_path, max_index_num=5000)
    put_plain(store, 200, 100, runs=True)
    flush(store)
    for n in range(300):
        assert asked(store, unique_id(n).decode()) == [b"%d" % n]


def test_only_what_is_confirmed_is_in_the_index(tmp_path: Path) -> None:
    store = opened(tmp_path, max_index_num=5000, mapped_file_size_commit_log=1 << 20)
    store.pipeline.gate_at(0)
    put_plain(store, 0, 60, runs=True)
    ends = [store.log.position]
    for n in range(60, 63):
        put_plain(store, n, 1, runs=True)
        ends.append(store.log.position)
    flush(store)
    assert asked(store, unique_id(1).decode()) == []
    store.confirm(ends[1])
    assert asked(store, unique_id(60).decode()) == [b"60"]
    assert asked(store, unique_id(61).decode()) == []
    store.confirm(INT64_MAX)
    assert [asked(store, unique_id(n).decode()) for n in (61, 62)] == [[b"61"], [b"62"]]


def test_a_disk_without_space_delays_keys_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, max_index_num=50)
    put_plain(store, 0, 120, runs=True)
    flush(store)
    roll = IndexFile.create

    def full(file: IndexFile) -> None:
        raise DiskFull("no space left")

    monkeypatch.setattr(IndexFile, "create", full)
    assert asked(store, unique_id(119).decode()) == []
    assert store.data.indexer is not None
    assert store.data.indexer.full_disk is not None
    monkeypatch.setattr(IndexFile, "create", roll)
    for n in range(120):
        assert asked(store, unique_id(n).decode()) == [b"%d" % n]


@pytest.mark.parametrize(
    "properties",
    [
        b"WAIT\x01true\x02",
        b"UNIQ_KEY\x01A\x02KEYS\x01k\x02",
        b"UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02",
        b"UNIQ_KEY\x01A\x02TAGS\x01a\x02TAGS\x01b\x02",
        "UNIQ_KEY\x01A\x02TAGS\x01ä\x02".encode(),
        b"UNIQ_KEY\x01%b\x02" % (b"A" * (aheadkeys.MAX_KEY_BYTES + 1)),
    ],
)
def test_other_properties_are_left_to_be_read(properties: bytes) -> None:
    assert KeyForm.of("T", properties, 0) is None


def test_rows_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aheadkeys, "LEAST_RECORDS", 1)
    ahead, form = AheadKeys(), KeyForm(2, 0, -1)
    for n in range(2 * aheadkeys.MAX_ROWS):
        ahead.expect(100 * n, 100 * n + 50, form, 0, b"ab", [50])
    assert ahead.records == aheadkeys.MAX_ROWS
    ahead.expect_none(1 << 30, (1 << 30) + 1)
    assert ahead.ahead(100 * aheadkeys.MAX_ROWS) is None
    assert ahead.records == 0
