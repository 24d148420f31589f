"""Records that look alike are read as a table: the same keys and tags as one by one."""

from __future__ import annotations

import itertools
import random

import numpy as np

from mqspark.message import encode_host
from mqspark.record.record import encode_record, tags_code
from mqspark.store.index.keys import KeyColumns, run_keys
from mqspark.store.log.record_tables import find_layouts
from mqspark.store.log.scan import read_run

HOST = encode_host("127.0.0.1", 10911)


def log_of(texts: list[tuple[str, bytes]]) -> tuple[memoryview, list[int]]:
    """Records with these topics and encoded properties, back to back from 0 on."""
    log, starts = bytearray(), []
    for number, (topic, properties) in enumerate(texts):
        starts.append(len(log))
        log += encode_record(
            topic=topic,
            body=b"b" * (number % 50),
            properties=properties,
            queue_id=number % 3,
            queue_offset=number,
            physical_offset=len(log),
            flag=0,
            sys_flag=0,
            born_timestamp_ms=1_700_000_000_000,
            born_host=HOST,
            store_timestamp_ms=1_700_000_000_000 + number,
            store_host=HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
        )
    return memoryview(bytes(log)), starts


def check(texts: list[tuple[str, bytes]]) -> None:
    view, starts = log_of(texts)
    alone = [keys_from(view, low, high) for low, high in itertools.pairwise([*starts, len(view)])]
    position, codes, parts = 0, [], []
    while (run := read_run(view, position, len(view), 0, verify_crc=True)) is not None:
        parts.append(run_keys(run))
        codes += run.tags_codes().tolist()
        position = run.end
    assert codes == [tags_code(properties) for _, properties in texts][: len(codes)]
    assert len(codes) > len(texts) - 32
    for column, wanted in zip(zip(*parts, strict=True), zip(*alone[: len(codes)], strict=True), strict=True):
        assert np.concatenate(column).tolist() == np.concatenate(wanted).tolist()


def keys_from(view: memoryview, low: int, high: int) -> KeyColumns:
    run = read_run(view, low, high, 0, verify_crc=False, min_records=1)
    assert run is not None
    return run_keys(run)


def test_many_of_one_kind_and_some_of_others() -> None:
    def plain(number: int) -> tuple[str, bytes]:
        text = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01Tag{number % 7}\x02KEYS\x01k{number:06d}\x02"
        return f"Topic{number % 3}", text.encode()

    texts = [plain(number) for number in range(1000)]
    assert len(find_layouts(*_columns(texts))[0]) == 1
    check(texts)
    odd = [
        ("T", b""),
        ("Topic1", b"KEYS\x01a b  c \x02TAGS\x01x"),
        ("Topic1", "KEYS\x01gr\u00fcn\x02UNIQ_KEY\x01\u65e5\x02".encode()),
        ("Topic1", b"UNIQ_KEY\x01\x02KEYS\x01\x02TAGS\x01\x02"),
        ("Topic1", b"TAGS\x01first\x02TAGS\x01second\x02KEYS\x01one\x02KEYS\x01two\x02"),
        ("Topic1", b"X\x01TAGS\x01no\x02KEYS\x01a\x01b\x02"),
    ]
    chance = random.Random(3)
    for each in odd * 5:
        texts.insert(chance.randrange(len(texts)), each)
    check(texts)


def test_values_that_could_be_read_in_two_ways() -> None:
    """The same lengths and separators, with bytes in them that a table must not take for letters."""
    chance = random.Random(4)
    odd = [b"\x02", b"\x01", b"\x00", b"\x03", b"\x7f", b"\x80", b" ", b"\xff"]

    def value(length: int) -> bytes:
        letters = bytearray(chance.choices(b"abcXYZ019", k=length))
        if chance.random() < 0.1:
            letters[chance.randrange(length)] = chance.choice(odd)[0]
        return bytes(letters)

    texts = [
        ("Orders", b"UNIQ_KEY\x01%b\x02KEYS\x01%b\x02TAGS\x01%b\x02" % (value(16), value(9), value(4)))
        for _ in range(2000)
    ]
    check(texts)


def test_words_at_the_same_places_and_elsewhere() -> None:
    check([("T", b"KEYS\x01ab cd%d\x02" % (number % 10)) for number in range(300)])
    check([("T", b"KEYS\x01%b\x02" % (b"ab cd", b"a bcd", b"abcde")[number % 3]) for number in range(300)])


def test_a_record_at_the_end_of_the_view_has_no_room_for_padding() -> None:
    check([("T", b"KEYS\x01k%03d\x02" % number) for number in range(200)])


def _columns(texts: list[tuple[str, bytes]]) -> tuple[memoryview, np.ndarray, np.ndarray, np.ndarray]:
    view, _ = log_of(texts)
    run = read_run(view, 0, len(view), 0, verify_crc=False)
    assert run is not None
    lengths = np.array([len(topic) for topic, _ in texts])
    return view, run.property_starts - 2 - lengths, run.property_starts, run.property_ends


def test_short_records_are_found_by_their_magics() -> None:
    """Bodies with magics in them, records that are cut, sizes that lie: as far as a walk from size to size comes."""
    chance = random.Random(6)
    for round_ in range(30):
        log = bytearray()
        starts = []
        for number in range(chance.choice([40, 200, 6000])):
            starts.append(len(log))
            body = bytes(chance.choices(b"\xda\xa3\x20\xa7\xab\x00a", k=chance.randrange(40)))
            if round_ % 3 == 0 and chance.random() < 0.02:
                body = b"\x00\x00\x00\x60\xda\xa3\x20\xa7" * 2
            log += encode_record(
                topic="T", body=body, properties=b"KEYS\x01k\x02", queue_id=0, queue_offset=number,
                physical_offset=len(log), flag=0, sys_flag=0, born_timestamp_ms=1, born_host=HOST,
                store_timestamp_ms=1, store_host=HOST, reconsume_times=0, prepared_transaction_offset=0,
            )  # fmt: skip
        limit = len(log) if round_ % 2 else len(log) - chance.randrange(200)
        broken = len(starts)
        if round_ % 5 == 4:
            broken = chance.randrange(len(starts))
            log[starts[broken] + chance.choice([3, 4, 31])] ^= 1
        expected = [s for s, end in zip(starts, [*starts[1:], len(log)], strict=True) if end <= limit][
            :broken
        ]
        found: list[int] = []
        position = 0
        while (
            run := read_run(memoryview(log), position, limit, 0, verify_crc=False, min_records=1)
        ) is not None:
            found += run.positions.tolist()
            position = run.end
        assert found == expected
