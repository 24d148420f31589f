"""Reading many records at once finds what looking at them one by one finds, damage or not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.record.record import Verdict, check_record, encode_record, tags_code
from mqspark.store.disk.layout import is_storable_topic
from mqspark.store.log.scan import Run, read_run
from tests.support.draws import draws

HOSTS = st.sampled_from([bytes(8), bytes(range(20))])
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(["A", "b-1", "V2" * 64, "%RETRY%g", "no/topic"]),
            "body": st.binary(max_size=80),
            "properties": st.sampled_from(
                [b"", b"TAGS\x01x\x02", b"K\x01v\x02TAGS\x01\xe4\xb8\xad\x02", b"torn\x01\0"]
            ),
            "queue_id": st.integers(0, 5),
            "queue_offset": st.integers(0, 1 << 40),
            "sys_flag": st.sampled_from([0, 1, 4, 8, 12, 0xC0]),
            "born_host": HOSTS,
            "store_host": HOSTS,
            "store_timestamp_ms": st.integers(0, 1 << 45),
        }
    ),
    max_size=12,
)
Row = tuple[int, int, str, int, int, int, int, int]


def one_by_one(log: memoryview, low: int, base: int, verify_crc: bool) -> list[Row]:
    rows: list[Row] = []
    while True:
        r = check_record(log, low, len(log), verify_crc=verify_crc)
        torn = r.properties.endswith(b"\0") or not is_storable_topic(r.topic)
        if r.verdict is not Verdict.VALID or r.physical_offset != base + low or torn:
            return rows
        rows.append(
            (base + low, r.size_bytes, r.topic, r.queue_id, r.queue_offset, r.sys_flag, r.store_timestamp_ms,
             tags_code(r.properties))
        )  # fmt: skip
        low += r.size_bytes


def rows_of(run: Run) -> list[Row]:
    columns = zip(
        run.positions.tolist(),
        run.sizes.tolist(),
        [run.topics[index] for index in run.topic_ids.tolist()],
        run.queue_ids.tolist(),
        run.queue_offsets.tolist(),
        run.sys_flags.tolist(),
        run.store_timestamps_ms.tolist(),
        run.tags_codes().tolist(),
        strict=True,
    )
    return list(columns)


@settings(max_examples=draws(300))
@given(
    records=RECORDS,
    before=st.integers(0, 9),
    behind=st.binary(max_size=120),
    base=st.sampled_from([0, 4096, 1 << 33]),
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), max_size=2),
    verify_crc=st.booleans(),
)
def test_both_ways_agree(
    records: list[dict[str, object]],
    before: int,
    behind: bytes,
    base: int,
    flips: list[tuple[int, int]],
    verify_crc: bool,
) -> None:
    log = bytearray(before)
    for record in records:
        log += encode_record(physical_offset=base + len(log), **record)  # type: ignore[arg-type]
    log += behind
    for place, mask in flips:
        if len(log) > before:
            log[before + place % (len(log) - before)] ^= mask
    view = memoryview(bytes(log))
    expected = one_by_one(view, before, base, verify_crc)
    run = read_run(view, before, len(view), base, verify_crc=verify_crc, min_records=1)
    if run is None:
        assert expected == []
        return
    assert rows_of(run) == expected
    assert run.end == before + sum(row[1] for row in expected)


EVEN = 1100
"""Enough records of one size to be read as a table."""


@settings(max_examples=25)
@given(
    odd=st.dictionaries(
        st.integers(0, EVEN - 1), st.sampled_from(["topic", "body", "empty", "torn", "host"]), max_size=2
    ),
    flips=st.lists(
        st.tuples(st.integers(900, EVEN - 1), st.integers(0, 299), st.integers(1, 255)), max_size=2
    ),
    behind=st.binary(max_size=120),
    base=st.sampled_from([0, 1 << 33]),
    verify_crc=st.booleans(),
)
def test_both_ways_agree_on_records_of_one_size(
    odd: dict[int, str], flips: list[tuple[int, int, int]], behind: bytes, base: int, verify_crc: bool
) -> None:
    """``odd``: records that have the same size and other lengths within."""
    log = bytearray()
    for number in range(EVEN):
        record = {
            "topic": f"T{number % 3}",
            "body": b"%060d" % number,
            "properties": b"TAGS\x01%02d\x02" % (number % 50),
        }
        record |= {
            "topic": {"topic": "Ten"},
            "body": {"body": b"b" * 59, "properties": b"K\x01v\x02TAGS\x01t\x02"},
            "empty": {"body": b"b" * 68, "properties": b""},
            "torn": {"properties": b"TAGS\x01t\0\0"},
            "host": {"body": b"b" * 48, "born_host": bytes(range(20))},
            "": {},
        }[odd.get(number, "")]
        if record["topic"] == "Ten":
            record["body"] = b"b" * 59
        fields = {
            "born_host": bytes(8),
            "store_host": bytes(8),
            "queue_id": number % 4,
            "sys_flag": 0,
        } | record
        log += encode_record(
            physical_offset=base + len(log),
            queue_offset=number,
            store_timestamp_ms=number,
            **fields,  # type: ignore[arg-type]
        )
    size = len(log) // EVEN
    for number, place, mask in flips:
        log[number * size + place % size] ^= mask
    view = memoryview(bytes(log + behind))
    expected = one_by_one(view, 0, base, verify_crc)
    found: list[Row] = []
    low = 0
    while (run := read_run(view, low, len(view), base, verify_crc=verify_crc, min_records=1)) is not None:
        found += rows_of(run)
        low = run.end
    assert found == expected
