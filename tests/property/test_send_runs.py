"""A broker that takes plain sends in runs, and one that reads every request in full: all that comes of it is alike."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqspark.errors import ProtocolError
from mqspark.protocol import command as commands
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import BINARY, JSON, encode_request
from mqspark.protocol.connection import MAX_STEPS, REFUSALS_A_STEP, Connection
from mqspark.protocol.headers.client_headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from mqspark.protocol.layouts import HeaderLayouts
from mqspark.protocol.session import Session
from tests.support.invariants import validate
from tests.unit.broker_kit import SEND, Bench, send_ext

KEY = "7F0000010BAD18B4AAC2{:012X}"
SMALL = {"mapped_file_size_commit_log": 1 << 16, "allocation_step_commit_log": 1 << 12}


class Side:
    """A broker, what it has learned, and the bytes of its connections."""

    def __init__(self, directory: Path, *, takes: bool, sync: bool) -> None:
        self.directory = directory
        ids = itertools.count()  # the same on both sides
        self.bench = Bench(
            directory, sync=sync, store_settings=SMALL, new_unique_id=lambda: KEY.format(1 << 44 | next(ids))
        )
        self.takes = takes
        self.layouts = HeaderLayouts(learning_cost=0)
        if not takes:
            self.layouts.credit = -(1 << 60)
        self.peers = [self.bench.peer(address=address) for address in ("127.0.0.1", "::1")]
        self.taken = 0

    def feed(self, number: int, data: bytes) -> bytes:
        """What the answers of this turn are."""
        peer = self.peers[number]
        if self.takes:
            self.taken += peer.give_bytes(data)
        else:
            peer.give_frames(data)
        self.bench.broker.turn()
        self.bench.housekeeping()
        return b"".join(peer.session.take())

    def pictures(self) -> dict[str, object]:
        """All that is left after the end, and what was counted."""
        state, acks = self.bench.broker.state, self.bench.broker.acks
        found: dict[str, object] = {"waiting": len(acks), "put": state.stats.put_messages}
        found["stored"] = self.bench.store.appender.put_count
        found["rpc"] = {rpc: row.buckets() for rpc, row in state.stats.rpc}
        acks.times.end_period()
        found["times"] = acks.times.classes()
        for name in ("T", "U"):
            if (topic := state.topics.get(name)) is not None:
                found[name] = (
                    topic.put_count,
                    topic.put_bytes,
                    topic.up_to_1k,
                    topic.up_to_4k,
                    topic.counted,
                )
        validate(self.bench.broker)
        self.bench.close()
        for part in ("commitlog", "consumequeue"):
            for path in sorted((self.directory / part).rglob("*")):
                if path.is_file():
                    found[str(path.relative_to(self.directory))] = path.read_bytes().rstrip(b"\0")
        for path in sorted((self.directory / "index").iterdir()):
            found[f"index {path.name != ''}"] = path.read_bytes()
        return found


class Two:
    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, *, sync: bool = False) -> None:
        self.patch = patch
        self.sides = [Side(directory / name, takes=name == "runs", sync=sync) for name in ("runs", "long")]

    def feed(self, number: int, data: bytes) -> bytes:
        answers = []
        for side in self.sides:
            self.patch.setattr(commands, "layouts", side.layouts)
            answers.append(side.feed(number, data))
        assert answers[0] == answers[1]
        return answers[0]

    def break_off(self) -> None:
        """After a frame that ends its connection. Of the frames before it in the same read, either side may have
        handled some: nobody was promised that they are."""
        for side in self.sides:
            validate(side.bench.broker)
            side.bench.close()

    def end(self) -> None:
        pictures = [side.pictures() for side in self.sides]
        assert pictures[0].keys() == pictures[1].keys()
        for name, picture in pictures[0].items():
            assert picture == pictures[1][name], name


_LONG_NAMES = {
    short: SendMessageRequestHeader.__struct_encode_fields__[
        SendMessageRequestHeader.__struct_fields__.index(attribute)
    ]
    for attribute, short in zip(
        SendMessageRequestHeaderV2.__struct_fields__,
        SendMessageRequestHeaderV2.__struct_encode_fields__,
        strict=True,
    )
}


def with_long_names(ext: dict[str, str]) -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2 as SEND_MESSAGE has them."""
    return {_LONG_NAMES[name]: value for name, value in ext.items()}


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    """A frame of a client, or one that has come apart on its way."""
    number = draw(st.integers(0, 1 << 40))
    around = draw(
        st.sampled_from(
            ["WAIT\x01true\x02"] * 4 + ["", "WAIT\x01false\x02", "TAGS\x01a\x02", "DELAY\x011\x02"]
        )
        | st.builds("KEYS\x01k{}\x02".format, st.integers(0, 20))
    )
    born = str(1_700_000_000_000 + draw(st.integers(0, 99)))
    if draw(st.integers(0, 2)) == 0:  # as a proxy sends it
        said = draw(st.sampled_from([born] * 9 + ["", "1", "1700000000001"]))
        around = f"PGROUP\x01p\x02__BORNHOST\x01::1\x02BORN_TIMESTAMP\x01{said}\x02{around}"
    properties = f"UNIQ_KEY\x01{KEY.format(number)}\x02{around}"
    code = draw(
        st.sampled_from(
            [SEND] * 9
            + [RequestCode.SEND_MESSAGE] * 4
            + [RequestCode.GET_MAX_OFFSET, RequestCode.SEND_BATCH_MESSAGE]
        )
    )
    ext = send_ext(
        draw(st.sampled_from("TTTTU")),
        draw(st.sampled_from([0, 0, 1, 2, 3, 3, 4, 9, -1])),
        properties,
        g=draw(st.sampled_from([born] * 9 + ["0" + born[1:], "01"])),
        j=draw(st.sampled_from("0000001")),
    )
    if code == RequestCode.SEND_MESSAGE:
        ext = with_long_names(ext)
    body = draw(st.sampled_from([b"x", b"y" * 100, b"z" * 2000, b"w" * 5000, b""]) | st.binary(max_size=40))
    frame = bytearray(
        encode_request(
            code,
            draw(st.integers(1000, 1100) | st.integers(0, 0x7FFFFFFF)),
            ext,
            body,
            serialize_type=draw(st.sampled_from([JSON, JSON, BINARY])),
            oneway=draw(st.integers(0, 15)) == 0,
        )
    )
    if draw(st.integers(0, 7)) == 0:
        # The kind of the header and the lengths stay: a connection that is closed is another test's.
        header_end = 8 + int.from_bytes(frame[5:8])
        at = draw(st.integers(8, header_end - 1))
        frame[at] = draw(st.sampled_from(b'"\\{}:,0159-+ _ux\x01\x02') | st.integers(0, 127))
    return bytes(frame)


@settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
)
@given(st.lists(sends(), min_size=1, max_size=40), st.data())
def test_whatever_a_connection_brings(
    tmp_path_factory: pytest.TempPathFactory, frames: list[bytes], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        two = Two(tmp_path_factory.mktemp("two"), patch, sync=data.draw(st.booleans()))
        stream = b"".join(data.draw(st.permutations(frames + frames)))
        while stream:
            length = data.draw(st.integers(1, len(stream)) | st.just(len(stream)))
            try:
                two.feed(0, stream[:length])
            except ProtocolError:
                two.break_off()
                return
            stream = stream[length:]
        two.end()


def plain(
    number: int,
    queue_id: int = 0,
    body: bytes = b"body",
    *,
    topic: str = "T",
    kind: int = JSON,
    code: RequestCode = SEND,
    by_proxy: bool = False,
) -> bytes:
    born = str(1_700_000_000_000 + number)
    around = (
        f"PGROUP\x01T\x02__BORNHOST\x01127.0.0.1\x02BORN_TIMESTAMP\x01{born}\x02"
        if by_proxy
        else "WAIT\x01true\x02"
    )
    ext = send_ext(topic, queue_id, f"UNIQ_KEY\x01{KEY.format(number)}\x02{around}", g=born)
    if code == RequestCode.SEND_MESSAGE:
        ext = with_long_names(ext)
    return encode_request(code, 1000 + number % 9000, ext, body, serialize_type=kind)


@pytest.mark.parametrize("kind", [JSON, BINARY])
@pytest.mark.parametrize("sync", [False, True])
def test_thousands_of_sends_over_several_segments_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, sync: bool
) -> None:
    two, number = Two(tmp_path, monkeypatch, sync=sync), 0
    sizes = (1, 900, 3000, 17, 5000)
    for count in (1, 1, 1, 1, 300, 2, 500, 4, 400):
        run = [
            plain(n, n % 4, b"v" * sizes[n % 5], topic="TU"[n % 7 == 0], kind=kind)
            for n in range(number, number + count)
        ]
        number += count
        stream = b"".join(run)
        two.feed(number % 2, stream[:-9])
        two.feed(number % 2, stream[-9:])
    assert two.sides[0].taken > 800
    two.end()


def test_a_run_ends_before_what_is_not_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two(tmp_path, monkeypatch)
    run = [plain(n) for n in range(8)]
    for frame in run[:4]:
        two.feed(0, frame)
    ours, before = two.sides[0], two.sides[0].taken
    other = encode_request(RequestCode.GET_MAX_OFFSET, 7, {"topic": "T", "queueId": "0"})
    answers = two.feed(0, b"".join([run[5], run[6], other, run[7], run[4][:-1]]))
    assert answers.count(b'"code":0') == 4
    assert ours.taken - before == 3
    two.feed(0, run[4][-1:])
    assert ours.taken - before == 4
    two.end()


def test_sends_behind_what_is_not_plain_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two(tmp_path, monkeypatch)
    for n in range(4):
        two.feed(0, plain(n))
    ours, before = two.sides[0], two.sides[0].taken
    other = encode_request(RequestCode.GET_MAX_OFFSET, 7, {"topic": "T", "queueId": "0"})
    two.feed(0, b"".join([other, *[plain(n) for n in range(5, 60)], other, plain(60), plain(61)[:-3]]))
    assert ours.taken - before == 56
    two.end()


@pytest.mark.parametrize("kind", [JSON, BINARY])
def test_sends_with_long_names_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    two = Two(tmp_path, monkeypatch)
    codes = RequestCode.SEND_MESSAGE, SEND
    for n in range(8):
        two.feed(0, plain(n, n % 4, kind=kind, code=codes[n // 4 % 2]))
    ours, before = two.sides[0], two.sides[0].taken
    for count in (1, 5, 40):
        run = [plain(n, n % 4, kind=kind, code=codes[n // 3 % 2]) for n in range(count)]
        two.feed(0, b"".join(run))
    assert ours.taken - before == 46
    two.end()  # both are counted by their codes


@pytest.mark.parametrize("kind", [JSON, BINARY])
def test_sends_that_a_proxy_passes_on_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """Their properties repeat the born time."""
    two = Two(tmp_path, monkeypatch)
    for n in range(4):
        two.feed(0, plain(n, n % 4, kind=kind, by_proxy=True))
    ours, before = two.sides[0], two.sides[0].taken
    two.feed(0, b"".join(plain(n, n % 4, kind=kind, by_proxy=True) for n in range(4, 44)))
    assert ours.taken - before == 40
    other = plain(44, kind=kind, by_proxy=True).replace(b"1700000000044", b"1700000000045", 1)
    two.feed(0, other)
    assert ours.taken - before == 40
    two.end()


def test_a_peer_whose_frames_are_others_is_asked_ever_more_rarely() -> None:
    asked: list[int] = []

    def take(session: Session, data: bytes, at: int) -> int:
        asked.append(at)
        return at

    connection, session = Connection(), Session(1, "127.0.0.1", 1, [])
    frame = encode_request(RequestCode.GET_MAX_OFFSET, 7, {"topic": "T", "queueId": "0"})
    questions = []
    for _ in range(1000):
        at, data, before = 0, connection.joined(frame * 4), len(asked)
        assert data is not None
        while at < len(data):
            at = connection.left(data, connection.taken(take, session, data, at))
        questions.append(len(asked) - before)
    assert questions[:2] == [4, 4]  # each frame
    most = 1 << MAX_STEPS
    assert sum(questions[2:]) == REFUSALS_A_STEP * (MAX_STEPS - 1) + -(
        -(998 - REFUSALS_A_STEP * (most - 2)) // most
    )
    # One that is taken again is asked for each frame again.
    data, before = frame * 200, len(asked)
    while connection.taken(take, session, data, 0) == 0 and len(asked) == before:
        assert connection.left(data, 0) == len(data)
    assert connection.taken(lambda session, data, at: at + len(frame), session, data, 0) == len(frame)
    assert connection.left(data, len(frame)) == 2 * len(frame)


def test_capacity_counts_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "layouts", HeaderLayouts(learning_cost=0))
    bench = Bench(tmp_path, sync=True, send_thread_pool_queue_capacity=10)
    peer = bench.peer()
    for n in range(6):
        peer.give_frame(plain(n))
        bench.broker.turn()
        bench.housekeeping()
    assert len(peer.heard()) == 6
    assert peer.give_bytes(b"".join(plain(n) for n in range(6, 20))) == 10
    assert len(bench.broker.acks) == 10
    bench.broker.turn()
    refused = peer.heard()
    assert [each.code for each in refused] == [ResponseCode.SYSTEM_BUSY] * 4
    bench.housekeeping()
    assert [each.opaque for each in peer.heard()] == [*range(1006, 1016)]
    bench.close()
