"""Many members of a batch stored as columns, or as a table: the same bytes as one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.errors import InvalidMessage, MessageTooLarge
from mqspark.message import SCHEDULE_TOPIC, TRANSACTION_PREPARED_TYPE, encode_host
from mqspark.record.batchitems import split_batch
from mqspark.store import MessageStore
from mqspark.store.messages.members import MIN_MEMBERS, MemberColumns
from mqspark.store.messages.membertable import MIN_ALIKE, BatchMembers, MemberTable, batch_members
from tests.support.clocks import ManualClock
from tests.support.draws import draws
from tests.support.store_tools import BORN_HOST, crash, make_store, opened, pending, put

Item = tuple[int, bytes, bytes]
T = TypeVar("T")

ITEMS = st.lists(
    st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.binary(max_size=40),
        st.sampled_from(
            [b"", b"TAGS\x01A\x02", b"KEYS\x01k\x02TAGS\x01B\x02", b"TAGS\x01\xc3\xa9", b"x\x01TAGS\x02"]
        ),
    ),
    min_size=MIN_MEMBERS,
    max_size=MIN_MEMBERS + 40,
)


@st.composite
def alike(draw: st.DrawFn) -> list[Item]:
    """Members whose bodies, and whose properties, are of one length."""
    body, count = draw(st.integers(0, 40)), draw(st.integers(MIN_ALIKE, MIN_ALIKE + 80))
    properties = draw(
        st.sampled_from(
            [
                [b""],
                [b"TAGS\x01A\x02", b"TAGS\x01BC", b"aTAGS\x01B"],
                [b"KEYS\x01k\x02TAGS\x01\xc3\xa9\x02"],
                [b"x\x01TAGS\x02"],
            ]
        )
    )
    return [
        (draw(st.integers(-(1 << 31), (1 << 31) - 1)), draw(st.binary(min_size=body, max_size=body)), text)
        for text in draw(st.lists(st.sampled_from(properties), min_size=count, max_size=count))
    ]


def body_of(items: list[Item]) -> bytes:
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
        for flag, body, properties in items
    )


def columns(items: list[Item]) -> MemberColumns:
    found = MemberColumns.of(body_of(items))
    assert found is not None
    return found


def table(items: list[Item]) -> MemberTable:
    found = batch_members(memoryview(body_of(items)))
    assert isinstance(found, MemberTable)
    return found


def files(root: Path) -> dict[str, bytes]:
    """The log, the queues and the index."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for name in ("commitlog", "consumequeue", "consumequeue_ext")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


def both(
    tmp_path: Path,
    items: list[Item],
    topic: str = "T",
    host: bytes = BORN_HOST,
    take: Callable[[list[Item]], BatchMembers] = columns,
    **given: object,
) -> None:
    """Stores ``items`` one by one and together, and compares what is told and what the disks have."""
    told, disks = [], []
    for name in ("alone", "together"):
        settings: dict[str, object] = {"mapped_file_size_commit_log": 1 << 20}
        flags = int(str(given.get("sys_flag", 0)))
        settings.update({key: value for key, value in given.items() if key != "sys_flag"})
        store: MessageStore = opened(tmp_path / name, ManualClock(1_700_000_000_000), **settings)
        put(store, topic, 1, b"before")
        record = pending(
            topic,
            1,
            born_timestamp_ms=99,
            born_host=host,
            sys_flag=flags,
            reconsume_times=3,
            prepared_offset=7,
        )
        if name == "alone":
            first, places, end = store.appender.put_batch(record, items)
        else:
            first, array, end = store.appender.put_members(record, take(items))
            places = array.tolist()
        told.append((first, places, end))
        put(store, topic, 1, b"behind")
        store.pipeline.commit()
        store.catch_up()
        store.close()
        disks.append(files(tmp_path / name))
    assert told[0] == told[1]
    assert disks[0] == disks[1]


@given(ITEMS)
@settings(max_examples=10)
def test_the_bytes_are_those_of_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, items: list[Item]
) -> None:
    both(tmp_path_factory.mktemp("members"), items)


@given(alike())
@settings(max_examples=10)
def test_so_are_those_of_a_table(tmp_path_factory: pytest.TempPathFactory, items: list[Item]) -> None:
    both(tmp_path_factory.mktemp("members"), items, take=table)


SOME: list[Item] = [
    (n, b"body %d" % n * (n % 7), b"KEYS\x01k%d\x02TAGS\x01t%d\x02" % (n, n % 3)) for n in range(200)
]
SOME_ALIKE: list[Item] = [
    (n, b"body %04d" % n, b"KEYS\x01k%04d\x02TAGS\x01t%d\x02" % (n, n % 3)) for n in range(200)
]


@pytest.mark.parametrize(("items", "take"), [(SOME, columns), (SOME_ALIKE, table)])
@pytest.mark.parametrize(
    ("topic", "given"),
    [
        ("T" * 200, {}),
        ("T", {"enabled_append_prop_crc": True}),
        ("T", {"enable_consume_queue_ext": True}),
        ("T", {"sys_flag": TRANSACTION_PREPARED_TYPE}),
        ("T", {"sys_flag": 0x8}),
        (SCHEDULE_TOPIC, {}),
    ],
)
def test_whatever_the_topic_and_the_settings(
    tmp_path: Path,
    topic: str,
    given: dict[str, object],
    items: list[Item],
    take: Callable[[list[Item]], BatchMembers],
) -> None:
    both(tmp_path, items, topic, BORN_HOST, take, **given)


@pytest.mark.parametrize(("items", "take"), [(SOME, columns), (SOME_ALIKE, table)])
def test_long_hosts(tmp_path: Path, items: list[Item], take: Callable[[list[Item]], BatchMembers]) -> None:
    both(tmp_path, items, host=encode_host("fd00::1", 50000), take=take)


@pytest.mark.parametrize(
    ("properties", "is_table"),
    [
        ([b"", b"a\x01b", b"a\x01b\x02", b"TAGS\x01t\x02a\x01"], False),
        ([b""], True),
        ([b"a\x01b"], True),
        ([b"a\x01b\x02", b"b\x01a\x02"], True),
        ([b"a\x01bc", b"a\x01b\x02"], False),
    ],
)
def test_more_properties_behind_their_own(tmp_path: Path, properties: list[bytes], is_table: bool) -> None:
    own: list[Item] = [(n, b"%03d" % n, properties[n % len(properties)]) for n in range(100)]
    more = b"c\x01d\x02"
    longer = [
        (flag, body, text + (b"" if text[-1:] in (b"", b"\x02") else b"\x02") + more)
        for flag, body, text in own
    ]
    given = batch_members(body_of(own))
    assert given is not None
    assert given.items() == own
    found = given.with_suffix(more)
    assert isinstance(found, MemberTable) == is_table
    assert found.items() == longer
    assert columns(longer).sizes(91).positions(7).tolist() == found.sizes(91).positions(7).tolist()
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 20)
    _, places, _ = store.appender.put_members(pending(), found)
    store.pipeline.commit()
    entries = [store.reads.parts_at(place) for place in places.tolist()]
    assert [(bytes(parts.body), parts.properties) for parts in entries if parts is not None] == [
        (body, text) for _, body, text in longer
    ]


def test_few_members_are_taken_one_by_one() -> None:
    assert MemberColumns.of(body_of(SOME[: MIN_MEMBERS - 1])) is None
    assert len(columns(SOME[:MIN_MEMBERS])) == MIN_MEMBERS
    assert batch_members(body_of(SOME[: MIN_MEMBERS - 1])) is None
    assert batch_members(body_of(SOME_ALIKE[: MIN_ALIKE - 1])) is None
    assert len(table(SOME_ALIKE[:MIN_ALIKE])) == MIN_ALIKE


@pytest.mark.parametrize("at", [0, 1, 3, 16, 19, 29, 30])
@pytest.mark.parametrize("member", [0, 1, 79])
def test_no_table_where_one_differs(at: int, member: int) -> None:
    items: list[Item] = [(0, b"body %04d" % n, b"a\x01b\x02") for n in range(80)]
    body = bytearray(body_of(items))
    assert MemberTable.of(bytes(body)) is not None
    body[len(body) // 80 * member + at] ^= 0x81
    assert MemberTable.of(bytes(body)) is None


@given(st.data(), st.sampled_from([SOME, SOME_ALIKE]))
@settings(max_examples=draws(300))
def test_damage_is_found_as_it_is_one_by_one(data: st.DataObject, items: list[Item]) -> None:
    body = bytearray(body_of(items[:80]))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(len(body) - 60, len(body)))])
    expected, wrong = taken(lambda: split_batch(cut))
    found, why = taken(lambda: batch_members(cut))
    if found is None:
        # Too few: whoever asked takes them one by one, and finds what is wrong.
        assert why == wrong if why else len(expected or []) < MIN_MEMBERS
        return
    assert expected is not None
    assert found.items() == expected


def taken(take: Callable[[], T]) -> tuple[T | None, str]:
    """What came, or what was wrong."""
    try:
        return take(), ""
    except InvalidMessage as error:
        return None, str(error)


def test_all_or_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path, max_message_size=100)
    small: list[Item] = [(0, b"x", b"")] * 100
    with pytest.raises(MessageTooLarge, match="body of 101 bytes exceeds the limit of 100"):
        store.appender.put_members(pending(), columns([*small, (0, bytes(101), b"")]))
    with pytest.raises(MessageTooLarge, match="record"):
        store.appender.put_members(pending(), columns([(0, bytes(100), b"")] * 100))
    assert store.log.position == 0


def test_they_survive_a_kill(tmp_path: Path) -> None:
    store = make_store(tmp_path, mapped_file_size_commit_log=1 << 20)
    store.open()
    first, places, _ = store.appender.put_members(pending(), columns(SOME))
    store.pipeline.commit()
    crash(store)
    again = make_store(tmp_path, mapped_file_size_commit_log=1 << 20)
    assert again.open().damaged == []
    entries = [again.reads.parts_at(place) for place in places.tolist()]
    assert first == 0
    assert [bytes(parts.body) for parts in entries if parts is not None] == [body for _, body, _ in SOME]
