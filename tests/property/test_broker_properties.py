"""What the broker's short cuts must not change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.broker.pull.parked_pulls import ParkedPulls, Pull
from mqspark.broker.state.acks import Acks
from mqspark.message import MessageExt, decode_properties, encode_properties, java_hash
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command, send_response_frame
from mqspark.protocol.connection import Connection
from mqspark.protocol.session import Session
from mqspark.record.record import decode_records
from tests.support.clocks import ManualClock
from tests.support.draws import draws
from tests.unit.broker_kit import SEND, Bench, send_ext

SET_BY_THE_BROKER = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "C"}

names = st.sampled_from(
    [
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "POP_CK",
        "XTAGS",
        "TAGSX",
        "MY_DELAY",
        "a",
    ]
)
values = st.text(
    st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)), min_size=1, max_size=12
)
texts = st.one_of(values, st.sampled_from(["TAGS", "UNIQ_KEY", "DELAY", "CLUSTER", "TIMER_", "x\ny"]))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("broker"))
    yield bench
    bench.close()


def send_and_read(bench: Bench, properties: str) -> tuple[Command, MessageExt | None]:
    """The answer, and the message as a consumer gets it."""
    answer = bench.peer().ask(SEND, send_ext(properties=properties), b"x")
    if answer.code:
        return answer, None
    result = bench.store.reads.get("T", 0, int(answer.ext["queueOffset"]), 1, 1 << 20, None)
    return answer, decode_records(b"".join(result.buffers))[0]


@settings(max_examples=draws(150))
@given(
    properties=st.lists(st.tuples(names, texts), max_size=6, unique_by=lambda item: item[0]).map(dict),
    closed=st.booleans(),
)
def test_properties_are_stored_as_if_they_had_been_taken_apart(
    bench: Bench, properties: dict[str, str], closed: bool
) -> None:
    text = encode_properties(properties).decode()
    answer, message = send_and_read(bench, text if closed else text.removesuffix("\x02"))
    assert message is not None
    expected = {**properties, **SET_BY_THE_BROKER}
    expected.pop("POP_CK", None)
    expected.setdefault("UNIQ_KEY", answer.ext["transactionId"])
    assert message.properties == expected
    assert answer.ext["transactionId"] == expected["UNIQ_KEY"]
    code = java_hash(expected["TAGS"]) if "TAGS" in expected else 0
    found = bench.store.reads.get("T", 0, message.queue_offset, 1, 1 << 20, frozenset({code}))
    assert found.next_offset == message.queue_offset + 1
    assert found.count == 1


@given(text=st.text(st.characters(blacklist_categories=("Cs",)), max_size=40))
@settings(max_examples=draws(150))
def test_any_property_text_is_answered_and_read_back_like_its_map(bench: Bench, text: str) -> None:
    answer, message = send_and_read(bench, text)
    assert answer.code in (0, 13)
    if message is not None:
        for name, value in decode_properties(text).items():
            if name not in {*SET_BY_THE_BROKER, "POP_CK"}:
                assert message.properties[name] == value


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    steps=st.lists(st.integers(0, 200), max_size=20),
)
def test_acks_leave_once_in_order_and_never_early(sizes: list[int], steps: list[int]) -> None:
    clock = ManualClock()
    acks = Acks(clock)
    session = Session(1, "127.0.0.1", 1, [])
    ends = []
    position = 0
    for opaque, size in enumerate(sizes):
        position += size
        ends.append(position)
        acks.waiting.append((position, session, send_response_frame(opaque, "00", 0, opaque, "u")))
    acks.end_turn()
    sent: list[int] = []
    acked = 0
    for step in steps:
        acked += step
        acks.release(acked)
        sent += [answer.opaque for answer in Connection().receive_data(b"".join(session.take()))]
        assert sent == [number for number, end in enumerate(ends) if end <= acked]
    clock.advance(5_000)
    acks.expire(5_000, ResponseCode.FLUSH_DISK_TIMEOUT, "late")
    late = Connection().receive_data(b"".join(session.take()))
    assert [answer.opaque for answer in late] == list(range(len(sent), len(sizes)))
    assert {answer.code for answer in late} <= {10}
    assert len(acks) == 0


@given(
    events=st.lists(
        st.one_of(
            st.tuples(st.just("park"), st.integers(0, 2), st.integers(0, 20), st.integers(1, 3_000)),
            st.tuples(st.just("grow"), st.integers(0, 2), st.integers(1, 5), st.just(0)),
            st.tuples(st.just("time"), st.integers(1, 900), st.just(0), st.just(0)),
        ),
        max_size=40,
    )
)
def test_a_parked_pull_leaves_exactly_once(events: list[tuple[str, int, int, int]]) -> None:
    clock = ManualClock()
    parked = ParkedPulls(clock)
    session = Session(1, "127.0.0.1", 1, [])
    ends = [0, 0, 0]
    waiting: dict[int, Pull] = {}
    number = 0
    for kind, first, second, third in events:
        if kind == "park":
            pull = Pull(session, number, "G", "T", first, ends[first] + second, 32, None, 0, 0)
            pull.deadline_ms = clock.monotonic_ms() + third
            parked.park(pull)
            waiting[number] = pull
            number += 1
        elif kind == "grow":
            ends[first] += second
            left = parked.arrived("T", first, ends[first])
            due = {
                key for key, pull in waiting.items() if pull.queue_id == first and pull.offset < ends[first]
            }
            assert {pull.opaque for pull in left} == due
            for pull in left:
                del waiting[pull.opaque]
        else:
            clock.advance(first)
            for pull in parked.expired():
                assert pull.deadline_ms <= clock.monotonic_ms()
                del waiting[pull.opaque]
        assert parked.count == len(waiting)
    clock.advance(5_000)
    for pull in parked.expired():
        del waiting[pull.opaque]
    assert waiting == {}
    assert parked.count == 0
