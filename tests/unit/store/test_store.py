"""What a broker asks of the store: put, commit, flush, get, offsets, delete, and the small files around
it."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from mqspark.errors import ConfigError, InvalidMessage, MessageTooLarge
from mqspark.message import SCHEDULE_TOPIC, encode_host, java_hash
from mqspark.record.record import decode_record, encode_record
from mqspark.store import GetStatus, MessageStore, StoreConfig, StoreReader
from mqspark.store.queue.delaylevels import DelayLevels
from tests.support.clocks import ManualClock
from tests.support.store_tools import (
    BORN_HOST,
    STORE_HOST,
    checkpoint,
    crash,
    drain,
    finish_deletions,
    flush,
    opened,
    pending,
    put,
)
from tests.unit.store.store_kit import bodies

# --- put ----------------------------------------------------------------------------------------------------


def test_the_hot_path_writes_what_the_encoder_writes(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_123)
    store = opened(tmp_path, clock)
    born_v6 = encode_host("fd00::1", 50000)
    cases = [
        ("T", b"body", b"TAGS\x01A\x02", BORN_HOST, 0, 0, 0, 0),
        ("T", b"", b"", BORN_HOST, 1, 7, 2, 0),
        ("T", memoryview(b"a view"), b"K\x01v\x02", born_v6, 0, -1, 0, 0),
        ("%RETRY%" + "g" * 123, b"long topic", b"", BORN_HOST, 0, 0, 16, 0),
        ("T", b"committed", b"", BORN_HOST, 0x8, 0, 0, 4096),
        ("T", b"prepared", b"", BORN_HOST, 0x4, 0, 0, 0),
        ("T", b"after", b"", BORN_HOST, 0x301, 0, 0, 0),
    ]
    expected = b""
    offsets = [0, 1, 2, 0, 3, 0, 4]
    for (topic, body, properties, born, sys_flag, flag, reconsume, prepared), offset in zip(
        cases, offsets, strict=True
    ):
        got = put(
            store,
            topic,
            3,
            body,
            properties,
            born_timestamp_ms=1_700_000_000_000,
            born_host=born,
            sys_flag=sys_flag,
            flag=flag,
            reconsume_times=reconsume,
            prepared_offset=prepared,
        )
        record = encode_record(
            topic=topic,
            body=bytes(body),
            properties=properties,
            queue_id=3,
            queue_offset=offset,
            physical_offset=len(expected),
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=1_700_000_000_000,
            born_host=born,
            store_timestamp_ms=1_700_000_000_123,
            store_host=STORE_HOST,
            reconsume_times=reconsume,
            prepared_transaction_offset=prepared,
        )
        assert got == (offset, len(expected), len(expected) + len(record))
        expected += record
    progress = store.pipeline.commit()
    assert (progress.written, progress.acked, progress.durable) == (len(expected), len(expected), 0)
    assert progress.arrivals == [("T", 3, 5), ("%RETRY%" + "g" * 123, 3, 1)]
    assert (tmp_path / "commitlog" / ("0" * 20)).read_bytes()[: len(expected)] == expected
    assert store.appender.put_count == len(cases)


def test_ipv6_store_host(tmp_path: Path) -> None:
    config = StoreConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=4096)
    store = MessageStore(config, ManualClock(), store_host=encode_host("fd00::2", 10911))
    store.open()
    for born in (BORN_HOST, encode_host("fd00::1", 1)):
        put(store, "T", 0, b"x")
        put(store, "T", 0, b"x", born_host=born)
    store.pipeline.commit()
    assert {m.store_host for m in drain(store, "T", 0)} == {"[fd00::2]:10911"}
    assert store.offsets.offset_by_timestamp("T", 0, 0) == 0
    assert store.offsets.store_timestamp_at("T", 0, 3) == ManualClock().wall_ms
    store.close()


def test_segments_roll_as_rocketmq_rolls(tmp_path: Path, store: MessageStore) -> None:
    body = b"x" * (4096 - 8 - 91 - 1)
    put(store, "T", 0, body)  # fills the segment to its last 8 bytes
    put(store, "T", 0, b"second")
    _, position, end = put(store, "T", 0, b"y" * 3800)
    assert position > 4096
    assert end <= 4096 * 2 - 8
    _, position, _ = put(store, "T", 0, b"z" * 1000)
    assert position == 4096 * 2
    store.pipeline.commit()
    first, second = [(tmp_path / "commitlog" / f"{start:020d}").read_bytes() for start in (0, 4096)]
    assert struct.unpack(">iI", first[-8:]) == (8, 0xCBD43194)
    assert struct.unpack_from(">iI", second, end - 4096) == (4096 * 2 - end, 0xCBD43194)
    assert [len(b) for b in bodies(store)] == [len(body), 6, 3800, 1000]


def test_limits(tmp_path: Path) -> None:
    store = opened(tmp_path, max_message_size=100)
    with pytest.raises(MessageTooLarge, match="body of 101 bytes exceeds the limit of 100"):
        put(store, "T", 0, bytes(101))
    with pytest.raises(MessageTooLarge, match="properties"):
        put(store, "T", 0, b"", bytes(32768))
    with pytest.raises(MessageTooLarge, match="record"):
        put(store, "T", 0, b"", bytes(5000))
    with pytest.raises(MessageTooLarge, match="record"):
        store.appender.put_batch(pending(), [(0, bytes(90), b"")] * 40)
    for topic in ("../up", "", "a/b", "x" * 256, "tab\t"):
        with pytest.raises(InvalidMessage) as caught:
            put(store, topic, 0, b"")
        assert caught.value.field == "topic"
    with pytest.raises(InvalidMessage):
        put(store, "T", -1, b"")
    assert store.log.position == 0
    assert put(store, "T", 0, bytes(100))[0] == 0


def test_batch_keeps_flags_and_tags(store: MessageStore) -> None:
    items = [(n, b"%d" % n, b"TAGS\x01%s\x02" % (b"A" if n % 2 else b"B")) for n in range(5)]
    put(store, "T", 0, b"before")
    first, positions, end = store.appender.put_batch(
        pending(born_timestamp_ms=99, sys_flag=0, reconsume_times=3), items
    )
    store.pipeline.commit()
    messages = drain(store, "T", 0)[1:]
    assert first == 1
    assert positions == [m.physical_offset for m in messages]
    assert end == positions[-1] + messages[-1].store_size_bytes
    assert [(m.flag, m.body, m.queue_offset) for m in messages] == [(n, b"%d" % n, n + 1) for n in range(5)]
    assert {m.reconsume_times for m in messages} == {3}
    only_a = drain(store, "T", 0, tag_codes=frozenset([java_hash("A")]))
    assert [m.body for m in only_a] == [b"1", b"3"]


def test_scheduled_entries_carry_the_deliver_time(tmp_path: Path) -> None:
    store = opened(tmp_path, ManualClock(1_000_000))
    put(store, SCHEDULE_TOPIC, 2, b"x", b"DELAY\x013\x02TAGS\x01A\x02")
    put(store, SCHEDULE_TOPIC, 2, b"x", b"TAGS\x01A\x02")
    put(store, SCHEDULE_TOPIC, 17, b"x", b"DELAY\x0199\x02")
    store.pipeline.commit()
    expected = {(2, 0): 1_010_000, (2, 1): java_hash("A"), (17, 0): 1_000_000 + 7_200_000}

    def codes() -> dict[tuple[int, int], int]:
        reader = StoreReader(tmp_path)
        return {
            (queue, n): entry[2]
            for queue in (2, 17)
            for n, entry in enumerate(reader.entries(SCHEDULE_TOPIC, queue, 0, 9).tolist())
        }

    assert codes() == expected
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = opened(tmp_path)
    assert codes() == expected


def test_delay_levels() -> None:
    levels = DelayLevels("1s 2m 1h 1d")
    assert levels.delays_ms == [1000, 120_000, 3_600_000, 86_400_000]
    assert levels.deliver_time_ms(9, 5) == 86_400_005
    assert DelayLevels("").deliver_time_ms(1, 5) == 1005
    for text in ("5", "s", "1w", "-1s", "1.5s"):
        with pytest.raises(ConfigError):
            DelayLevels(text)


# --- visibility ---------------------------------------------------------------------------------------------


def test_sync_flush_shows_and_acks_what_is_durable(tmp_path: Path) -> None:
    store = opened(tmp_path, sync=True)
    _, _, end_one = put(store, "T", 0, b"one")
    assert store.pipeline.commit().arrivals == []
    job = store.pipeline.begin_flush()
    assert job is not None
    put(store, "T", 0, b"two")
    put(store, "T", 1, b"three")
    progress = store.pipeline.commit()
    assert (progress.written, progress.acked) == (end_one, 0), "waits for the flush under way"
    assert store.reads.get("T", 0, 0, 1, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    job.run()
    progress = store.pipeline.end_flush(job)
    assert (progress.acked, progress.arrivals) == (end_one, [("T", 0, 1)])
    assert bodies(store) == [b"one"]
    assert flush(store) == [("T", 0, 2), ("T", 1, 1)]
    assert store.pipeline.begin_flush() is None


def test_what_waits_for_a_sync_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqspark.store.messages.commit.MAX_UNWRITTEN_BYTES", 300)
    store = opened(tmp_path, sync=True)
    put(store, "T", 0, b"one")
    store.pipeline.commit()
    job = store.pipeline.begin_flush()
    assert job is not None
    _, start, _ = put(store, "T", 0, b"two")
    assert store.pipeline.commit().written == start
    _, _, end = put(store, "T", 0, b"x" * 300)
    assert store.pipeline.commit().written == end
    job.run()
    store.pipeline.end_flush(job)
    flush(store)
    assert bodies(store) == [b"one", b"two", b"x" * 300]


def test_nothing_is_visible_before_commit(store: MessageStore) -> None:
    put(store, "T", 0, b"one")
    assert store.offsets.max_offset("T", 0) == 0
    assert store.reads.record_at(0) is None
    store.pipeline.commit()
    assert store.offsets.max_offset("T", 0) == 1
    record = store.reads.record_at(0)
    assert record is not None
    assert decode_record(record).body == b"one"
    for wrong in (-1, 1, 50, len(record), 4095, 4096, 1 << 60):
        assert store.reads.record_at(wrong) is None


# --- get ----------------------------------------------------------------------------------------------------


def test_get_statuses(tmp_path: Path, store: MessageStore) -> None:
    for n in range(25):
        put(store, "T", 0, b"%d" % n, b"TAGS\x01A\x02")
        put(store, "Other", 0, b"between")
    store.pipeline.commit()
    get = store.reads.get

    def outcome(
        topic: str, offset: int, codes: frozenset[int] | None = None
    ) -> tuple[str, int, int, int, int]:
        result = get(topic, 0, offset, 4, 1 << 20, codes)
        return result.status.name, result.next_offset, result.min_offset, result.max_offset, result.count

    assert outcome("Unknown", 0) == ("NO_MATCHED_LOGIC_QUEUE", 0, 0, 0, 0)
    assert outcome("T", -1) == ("OFFSET_TOO_SMALL", 0, 0, 25, 0)
    assert outcome("T", 25) == ("OFFSET_OVERFLOW_ONE", 25, 0, 25, 0)
    assert outcome("T", 26) == ("OFFSET_OVERFLOW_BADLY", 25, 0, 25, 0)
    assert outcome("T", 0) == ("FOUND", 4, 0, 25, 4)
    assert outcome("T", 8) == ("FOUND", 10, 0, 25, 2), "a read ends with its queue file, as RocketMQ's"
    assert outcome("T", 0, frozenset([1])) == ("NO_MATCHED_MESSAGE", 10, 0, 25, 0)
    assert outcome("T", 0, frozenset([java_hash("A"), 1])) == ("FOUND", 4, 0, 25, 4)
    assert len(get("T", 0, 0, 4, 1 << 20).buffers) == 4, "records of another topic lie between"
    (tmp_path / "consumequeue/T/0" / f"{200:020d}").unlink()
    store.table.maps.clear()
    store.table.queues["T", 0].file_starts.remove(200)
    assert outcome("T", 12) == ("OFFSET_FOUND_NULL", 20, 0, 25, 0)


def test_get_limits(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_consume_queue=6000)
    sizes = []
    for n in range(60):
        _, position, end = put(store, "T", 0, bytes(n), b"TAGS\x01A\x02" if n % 3 else b"")
        sizes.append(end - position)
    store.pipeline.commit()
    assert store.reads.get("T", 0, 0, 32, 1).count == 1, "one message comes whatever its size"
    assert store.reads.get("T", 0, 0, 32, sum(sizes[:7])).count == 7
    assert store.reads.get("T", 0, 0, 32, sum(sizes[:7]) - 1).count == 6
    assert store.reads.get("T", 0, 0, 5, 1 << 20).count == 5
    result = store.reads.get("T", 0, 0, 3, 1 << 20, frozenset([java_hash("A")]))
    assert (result.count, result.next_offset) == (3, 5), "offsets 1, 2 and 4 match; 5 is next to look at"
    result = store.reads.get("T", 0, 59, 3, 1 << 20, frozenset([java_hash("A")]))
    assert (result.count, result.next_offset) == (1, 60)
    assert store.reads.get("T", 0, 10, 20, 1 << 20).size_bytes == sum(sizes[10:30])
    assert len(store.reads.get("T", 0, 10, 20, 1 << 20).buffers) == 1


def test_damaged_heads_are_left_out(tmp_path: Path, store: MessageStore) -> None:
    positions = [put(store, "T", 0, b"%d" % n)[1] for n in range(6)]
    flush(store)
    path = tmp_path / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        for number, place in ((1, 3), (4, 5)):
            file.seek(positions[number] + place)
            file.write(b"\x7f")
    assert bodies(store) == [b"0", b"2", b"3", b"5"]
    result = store.reads.get("T", 0, 1, 1, 1 << 20)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 2)
    assert store.status.damaged_reads == 3
    assert store.reads.record_at(positions[1]) is None


def test_offset_by_timestamp_over_lost_records(tmp_path: Path) -> None:
    clock = ManualClock(1000)
    store = opened(tmp_path, clock)
    positions = []
    for _ in range(30):
        positions.append(put(store, "T", 0, b"body")[1])
        store.pipeline.commit()
        clock.advance(10)
    crash(store)
    path = tmp_path / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        for number in (13, 14, 15, 16):
            file.seek(positions[number] + 90)
            file.write(b"\xff")
    store = opened(tmp_path, clock)
    found = [store.offsets.offset_by_timestamp("T", 0, 1000 + 10 * n) for n in range(31)]
    assert found == [n if not 13 <= n <= 16 else 17 for n in range(31)]
    assert store.offsets.offset_by_timestamp("T", 0, 1225, upper=True) == 22
    assert store.offsets.offset_by_timestamp("T", 0, 0, upper=True) == 0
    assert store.offsets.offset_by_timestamp("T", 0, 1 << 50, upper=True) == 29
    assert store.offsets.offset_by_timestamp("None", 0, 5) == 0
    assert store.offsets.store_timestamp_at("T", 0, 13) == -1
    assert store.offsets.store_timestamp_at("T", 0, 12) == 1120
    assert store.reads.earliest_store_timestamp() == 1000
    assert len(bodies(store)) == 26


def test_a_queue_that_starts_in_the_middle(tmp_path: Path, store: MessageStore) -> None:
    """The log's first segments are gone: fillers before the first entry, and min offsets that say so."""
    for n in range(60):
        put(store, "T", 0, b"%02d" % n * 40)
    for n in range(3):
        put(store, "Late", 1, b"%d" % n)
    flush(store)
    store.close()
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    store = opened(tmp_path)
    first = store.offsets.min_offset("T", 0)
    assert 0 < first < 60
    assert store.log.min_offset == 4096
    assert store.reads.get("T", 0, 0, 32, 1 << 20).status is GetStatus.OFFSET_TOO_SMALL
    assert [m.queue_offset for m in drain(store, "T", 0)] == list(range(first, 60))
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = opened(tmp_path)
    assert (store.offsets.min_offset("T", 0), store.offsets.max_offset("T", 0)) == (first, 60)
    assert [m.queue_offset for m in drain(store, "T", 0)] == list(range(first, 60))
    first_file = sorted((tmp_path / "consumequeue/T/0").iterdir())[0].read_bytes()
    assert first_file[:20] == struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
    assert bodies(store, "Late", 1) == [b"0", b"1", b"2"]
    store.close()
    store = opened(tmp_path)
    assert store.offsets.min_offset("T", 0) == first


# --- many queues --------------------------------------------------------------------------------------------


def test_more_queues_than_maps(tmp_path: Path) -> None:
    store = opened(tmp_path, max_mapped_files=4, mapped_file_size_commit_log=1 << 20)
    for n in range(50 * 7):
        put(store, f"T{n % 50}", 0, b"%d" % n)
        if n % 20 == 0:
            store.pipeline.commit()
    store.pipeline.commit()
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert sum(f"{tmp_path}/consumequeue/" in line for line in maps) <= 4
    for topic in range(50):
        assert bodies(store, f"T{topic}") == [b"%d" % n for n in range(topic, 350, 50)]
    assert store.offsets.queues()["T7"] == [0]


def test_buffers_outlive_maps(tmp_path: Path) -> None:
    store = opened(tmp_path, max_mapped_files=1)
    for n in range(100):
        put(store, "T", 0, b"%03d" % n * 50)
    store.pipeline.commit()
    kept = [store.reads.get("T", 0, n, 1, 1).buffers[0] for n in range(100)]
    store.close()
    assert [decode_record(view).body for view in kept] == [b"%03d" % n * 50 for n in range(100)]


def test_queue_files_cost_a_page_at_first(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_consume_queue=6_000_000, mapped_file_size_commit_log=1 << 30)
    put(store, "T", 0, b"x")
    store.pipeline.commit()
    path = tmp_path / "consumequeue/T/0" / ("0" * 20)
    assert path.stat().st_size == 6_000_000
    assert path.stat().st_blocks * 512 <= 8192
    assert (tmp_path / "commitlog" / ("0" * 20)).stat().st_size == 1 << 30
    assert (tmp_path / "commitlog" / ("0" * 20)).stat().st_blocks * 512 <= (16 << 20) + 4096


def test_delete_topic(tmp_path: Path) -> None:
    store = opened(tmp_path, sync=True)
    for topic in ("T", "Stays"):
        for n in range(30):
            put(store, topic, n % 2, b"%d" % n)
    flush(store)
    put(store, "T", 0, b"not yet visible")
    store.pipeline.commit()
    store.delete_topic("T")
    assert flush(store) == []
    assert store.offsets.queues() == {"Stays": [0, 1]}
    finish_deletions(store)
    assert not (tmp_path / "consumequeue/T").exists()
    checkpoint(store)
    crash(store)
    store = opened(tmp_path)
    assert store.offsets.queues() == {"Stays": [0, 1]}
    assert put(store, "T", 0, b"again")[0] == 0
    store.pipeline.commit()
    assert bodies(store) == [b"again"]
