"""Offsets by queue in an array behave like a dict; files of them are read in any form."""

import re
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqspark.base.keyorder import KeyOrder
from mqspark.broker.tables.consumer_offsets import SOUGHT_AT_ONCE, ConsumerOffsets
from mqspark.broker.tables.offset_row import OFFSET_SLICE_BYTES, OffsetRow, decode_offsets, offsets_in_slices
from mqspark.errors import ProtocolError
from mqspark.protocol import fastjson
from mqspark.protocol.bodies.admin_bodies import ConsumerOffsetSerializeWrapper
from mqspark.protocol.bodies.body import decode_table, encode_body
from mqspark.protocol.bodies.topic_bodies import DataVersion
from mqspark.protocol.slices import finished
from mqspark.testing import FakeClock
from tests.support.slices import sliced

QUEUES = st.integers(min_value=-2, max_value=8) | st.just((1 << 31) - 1)
OFFSETS = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


@given(st.lists(st.tuples(QUEUES, st.none() | OFFSETS), max_size=30))
def test_offset_rows_are_those_of_a_dict(steps):
    offsets, expected = OffsetRow(), {}
    empty_bytes = size_bytes = offsets.size_bytes
    for queue_id, offset in steps:
        if offset is None:
            assert offsets.pop(queue_id) == expected.pop(queue_id, None)
            size_bytes = offsets.size_bytes
        else:
            size_bytes += offsets.put(queue_id, offset)
            expected[queue_id] = offset
        assert (offsets.as_dict(), len(offsets), offsets.size_bytes) == (expected, len(expected), size_bytes)
        assert dict(offsets.items()) == dict(offsets.copy().items()) == expected
        for each in range(-3, 10):
            assert (each in offsets, offsets.get(each, -7)) == (each in expected, expected.get(each, -7))
    assert OffsetRow(expected).as_dict() == expected
    assert offsets.size_bytes >= empty_bytes


@given(st.lists(OFFSETS, max_size=5), st.lists(st.integers(min_value=0, max_value=1 << 62), min_size=5))
def test_offsets_below_the_ends_are_known_at_once(row, ends):
    offsets = OffsetRow(dict(enumerate(row)))
    assert offsets.are_below(lambda count: ends) == all(
        0 <= offset <= end for offset, end in zip(row, ends, strict=False)
    )
    offsets.put(7, 0)
    assert not offsets.are_below(lambda count: ends)


@pytest.mark.parametrize(
    "rows",
    [
        "{0:11,1:12\n\t\t}",
        '{"0":11,"1":12}',
        "{0 : 11 , 1:12}",
        "{1:12,0:11}",
        '{0:11,"1":12}',
        "{'0':11,1:12,}",
        "{0:11,1:12,2:null}",
    ],
)
def test_offsets_are_read_in_every_form_of_a_file(rows):
    text = (
        '{\n\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":9},\n\t"offsetTable":{'
        '\n\t\t"T@G":%s,"{0:1}@H":{\n\t\t},"U@G":{5:-1}\n\t}\n}'
    )
    found, version = decode_offsets((text % rows).encode())
    assert {key: each.as_dict() for key, each in found.items()} == {
        "T@G": {0: 11, 1: 12},
        "{0:1}@H": {},
        "U@G": {5: -1},
    }
    assert version.counter == 3


@pytest.mark.parametrize(
    ("written", "read"), [(1 << 63, (1 << 63) - 1), (10**20, (1 << 63) - 1), (-(10**20), -(1 << 63))]
)
def test_of_an_offset_beyond_64_bits_the_nearest_is_read(written, read):
    text = b'{"offsetTable":{"T@G":{0:%d,1:7},"T@H":{0:5}},"lmqOffsetTable":{"%%LMQ%%L@G":%d}}'
    rows, _ = decode_offsets(text % (written, written))
    assert {key: each.as_dict() for key, each in rows.items()} == {
        "T@G": {0: read, 1: 7},
        "T@H": {0: 5},
        "%LMQ%L@G": {0: read},
    }


@given(st.lists(OFFSETS, min_size=1, max_size=20))
def test_a_row_is_written_as_any_other_table(offsets):
    row = OffsetRow(dict(enumerate(offsets)))
    shuffled = dict(reversed(list(enumerate(offsets))))
    assert fastjson.dumps_pretty({"T@G": row.as_dict()}) == fastjson.dumps_pretty({"T@G": shuffled})


def test_a_file_whose_version_is_the_last_one_is_followed_by_one_that_can_be_read():
    last = b'{"offsetTable":{"T@G":{"0":5}},"dataVersion":{"counter":9223372036854775807}}'
    offsets = ConsumerOffsets(FakeClock(), version_step=1)
    offsets.load(last)
    offsets.commit("G", "T", 0, 6)
    _, version = decode_offsets(b"".join(offsets.snapshot()()))
    assert version is not None
    assert version.counter == -(1 << 63)


def test_a_copy_in_slices_has_the_version_of_its_beginning(monkeypatch):
    """Who follows has to ask again: some of what is committed meanwhile is not in the copy."""
    monkeypatch.setattr("mqspark.broker.tables.consumer_offsets.COPIED_AT_ONCE", 1)
    offsets = ConsumerOffsets(FakeClock(), version_step=1)
    for topic in ("T0", "T1", "T2"):
        offsets.commit("G", topic, 0, 7)
    version, work = offsets.data_version, offsets.wrapper_in_slices()
    next(work)
    offsets.commit("G", "T0", 0, 8)
    copied = finished(work)
    assert copied.offset_table["T0@G"] == {0: 7}
    assert copied.data_version == version != offsets.data_version


def test_pairs_of_some_topics_are_found_and_removed_without_a_look_at_the_others(monkeypatch):
    offsets = ConsumerOffsets(FakeClock(), version_step=1)
    pairs = [(f"T{topic}", f"G{group}") for topic in range(200) for group in range(100)]
    for topic, group in pairs:
        offsets.commit(group, topic, 0, 7)
    wanted = {"T7", "T70", "T", "U", "T199"}
    monkeypatch.setattr(KeyOrder, "pages", None)  # all of them
    found, slices = sliced(offsets.pairs_of(wanted))
    assert found == sorted(pair for pair in pairs if pair[0] in wanted)
    assert slices == 0
    _, slices = sliced(offsets.pairs_of({f"no{number}" for number in range(4 * SOUGHT_AT_ONCE)}))
    assert slices == 4
    finished(offsets.remove_topics(wanted))
    monkeypatch.undo()
    assert list(offsets.pairs()) == sorted(pair for pair in pairs if pair[0] not in wanted)


def in_slices(text):
    """The parts of a master's offsets, joined, their version, and the number of slices."""
    (parts, version), pauses = sliced(offsets_in_slices(text))
    return {key: row for part in parts for key, row in part.items()}, version, pauses + 1


def test_offsets_of_a_master_are_decoded_in_slices():
    table = {f"T{number:04d}@G": {queue: number * queue for queue in range(4)} for number in range(3_000)}
    version = DataVersion(1, 2, 3)
    text = encode_body(ConsumerOffsetSerializeWrapper(offset_table=table, data_version=version))
    found, as_of, slices = in_slices(text)
    assert (found, as_of) == (table, version)
    assert slices >= len(text) // (OFFSET_SLICE_BYTES + 100)


def test_offsets_of_rocketmq_are_decoded_in_slices_too():
    """It writes the numbers of queues bare."""
    table = {f"T{number:04d}@G": {queue: number * queue for queue in range(4)} for number in range(3_000)}
    text = encode_body(ConsumerOffsetSerializeWrapper(offset_table=table, data_version=DataVersion(1, 2, 3)))
    found, _, slices = in_slices(re.sub(rb'"(\d)":', rb"\1:", text))
    assert found == table
    assert slices >= len(text) // (OFFSET_SLICE_BYTES + 200)


def test_a_master_catches_up_in_slices_and_sets_no_consumer_back():
    """Clients that know it from before may commit between two slices."""
    offsets = ConsumerOffsets(FakeClock(), version_step=1)
    offsets.commit("G", "T0007", 0, 9)
    names = [f"T{number:04d}" for number in range(2_000)]
    parts = deque({f"{name}@G": {0: 5} for name in names[low : low + 100]} for low in range(0, 2_000, 100))
    slices = 1
    for _ in offsets.catch_up(parts, None):
        slices += 1
        for name in names[-700:]:
            offsets.commit("G", name, 0, 5 + slices)
    assert slices > 3
    expected = dict.fromkeys(names, 5) | {"T0007": 9} | dict.fromkeys(names[-700:], 5 + slices)
    assert {name: offsets.queues("G", name)[0] for name in names} == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{},"dataVersion":{"counter":7}}',
        '{"dataVersion":{"counter":7}}',
        '{"offsetTable":{"T@G":{0:1,1:2}},"dataVersion":{"counter":7}}',
        '{"offsetTable":{"T@G":{"0":1},"U@G":{}},"dataVersion":{"counter":7}}',
        '{"dataVersion":{"counter":7},"offsetTable":{"T@G":{},"U@G":{"3":4}}}',
        '{"dataVersion":{"counter":7},"offsetTable":{"T}},\\"@G":{"3":4},"U@G":{"5":6}}}',
        '{ "offsetTable" : { "T@G" : { "0" : 1 } } , "dataVersion" : { "counter" : 7 } }',
    ],
)
@pytest.mark.parametrize("slice_bytes", [0, 1, OFFSET_SLICE_BYTES])
def test_offsets_of_a_master_mean_the_same_however_they_are_written(monkeypatch, text, slice_bytes):
    monkeypatch.setattr("mqspark.broker.tables.offset_row.OFFSET_SLICE_BYTES", slice_bytes)
    expected = decode_table(ConsumerOffsetSerializeWrapper, text.encode())
    found, version, _ = in_slices(text.encode())
    assert (found, version) == (expected.offset_table, expected.data_version)


@pytest.mark.parametrize("text", ['{"offsetTable":{"T@G":{"0":1', '{"offsetTable":{"T@G":{"0":"x"}}}', "[]"])
def test_what_is_no_table_of_offsets_is_refused(text):
    with pytest.raises(ProtocolError):
        in_slices(text.encode())
