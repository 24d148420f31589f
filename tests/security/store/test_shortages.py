"""Connections that take every descriptor, or memory, and an operator who takes a permission: a store that gets EMFILE,
ENFILE, ENOMEM, EAGAIN, EACCES or EPERM refuses what it cannot do now, loses nothing, and goes on when it can again.
Only real errors of writing and syncing poison."""

from __future__ import annotations

import contextlib
import errno
import mmap
from pathlib import Path

import pytest

from mqspark.broker.timer.delays import DELAY_RETRY_MS
from mqspark.errors import NoResources, NotNow, StoreUnreadable
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.client_headers import PopMessageRequestHeader
from mqspark.store import MessageStore
from mqspark.store.disk.files import OsFiles, StrPath
from mqspark.store.reads import Reads
from tests.support.clocks import ManualClock
from tests.support.draws import some
from tests.support.store_tools import FaultyFiles, checkpoint, drain, flush, make_store, opened, put, query
from tests.unit.broker_kit import Bench, send_ext

SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.EPERM]


class PoorFiles(FaultyFiles):
    """Whatever needs a descriptor or memory counts as ``take``."""

    def open(self, path: StrPath, *, create: bool = False) -> int:
        self._note("take")
        return super().open(path, create=create)

    def map_write(self, fd: int, length: int) -> mmap.mmap:
        self._note("take")
        return super().map_write(fd, length)

    def map_read(self, fd: int, length: int) -> mmap.mmap:
        self._note("take")
        return super().map_read(fd, length)

    def write(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._note("take")
        super().write(fd, data, offset)

    def sync_directory(self, path: StrPath) -> None:
        self._note("take")
        super().sync_directory(path)

    def names(self, path: StrPath) -> list[str]:
        self._note("take")
        return super().names(path)


def run(
    store: MessageStore, clock: ManualClock, kept: dict[str, list[bytes]], begin: int, count: int
) -> None:
    """Sends of some topics, with everything that a broker does beside them. ``kept``: what was taken."""
    for number in range(begin, begin + count):
        topic, body = f"T{number % 3}", b"%d" % number * 100
        try:
            put(store, topic, 0, body, b"KEYS\x01k%d\x02" % number)
        except NotNow:
            pass
        else:
            kept.setdefault(topic, []).append(body)
        clock.advance(100)
        flush(store)
        if number % 4 == 3:
            clock.advance(20_000)
            with contextlib.suppress(OSError):
                checkpoint(store)
            store.catch_up()
        assert store.condition.read_only is None, store.condition.read_only


def steps(root: Path, sync: bool) -> int:
    files, clock = PoorFiles(), ManualClock()
    store = opened(root, clock, files, sync=sync)
    files.calls.clear()
    run(store, clock, {}, 0, 24)
    count = files.calls.count("take")
    store.close()
    return count


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("lasting", some([1, 7, 60], 1))
def test_a_shortage_at_any_moment_loses_nothing_and_ends(tmp_path: Path, sync: bool, lasting: int) -> None:
    count = steps(tmp_path / "whole", sync)
    assert count > 60
    for first in range(sync, count, 8 if lasting == 1 else 12):
        files, clock = PoorFiles(), ManualClock()
        store = opened(tmp_path / str(first), clock, files, sync=sync)
        met = [0]

        def fault(first: int = first, met: list[int] = met) -> None:
            met[0] += 1
            if first < met[0] <= first + lasting:
                raise OSError(SHORTAGES[met[0] % len(SHORTAGES)], "just now there is none")

        files.faults["take"] = fault
        kept: dict[str, list[bytes]] = {}
        run(store, clock, kept, 0, 24)
        files.heal()
        taken = sum(map(len, kept.values()))
        clock.advance(30_000)
        flush(store)
        run(store, clock, kept, 24, 6)
        assert sum(map(len, kept.values())) == taken + 6, "it takes messages again"
        for _ in range(2):
            clock.advance(30_000)
            checkpoint(store)
            flush(store)
        assert store.status.checkpoint_problem is None
        assert store.status.index_problem is None
        for topic, bodies in kept.items():
            assert [message.body for message in drain(store, topic, 0)] == bodies
        for number in (25, 29):
            assert query(store, f"T{number % 3}", f"k{number}", 32, 0, 1 << 60)
        store.close()
        again = make_store(tmp_path / str(first), ManualClock(), sync=sync)
        assert again.open().clean
        for topic, bodies in kept.items():
            assert [message.body for message in drain(again, topic, 0)] == bodies
        again.close()


@pytest.mark.parametrize("error", SHORTAGES)
def test_a_config_file_that_cannot_be_saved_now_is_saved_later(tmp_path: Path, error: int) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, None, files)
    file = store.config_file("topics.json")
    files.fail("create", error, for_ever=False)
    with pytest.raises(OSError, match=r"\["):
        file.save(b"1")
    store.pipeline.commit()
    assert store.condition.read_only is None
    file.save(b"2")
    assert file.load() == b"2"
    store.close()


@pytest.mark.parametrize("error", SHORTAGES)
def test_a_sync_that_says_so_has_failed_all_the_same(
    tmp_path: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(error, "no")

    store = opened(tmp_path, None, OsFiles(), sync=True)
    put(store, "T", 0, b"x")
    monkeypatch.setattr("os.fdatasync", fail)
    flush(store)
    assert store.condition.read_only is not None
    store.abandon()


def test_what_lacks_a_descriptor_says_so(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, None, files)
    files.fail("create", errno.EMFILE)
    with pytest.raises(NoResources, match=r"ConsumeQueue T/0.*Too many open files") as raised:
        put(store, "T", 0, b"x")
    assert raised.value.errno == errno.EMFILE
    files.heal()
    put(store, "T", 0, b"x")
    store.close()


@pytest.mark.parametrize("kind", ["pull", "parked pull", "pop"])
def test_a_read_that_lacks_a_descriptor_costs_itself(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the turn, in which everybody's messages are written and everybody's answers leave."""
    bench = Bench(tmp_path, auto_create_topic_enable=True)
    producer, consumer = bench.peer(), bench.peer()
    producer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), b"first")

    def lack(*args: object, **more: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    if kind == "parked pull":
        consumer.give_pull(offset=1, sysFlag="6")
    with monkeypatch.context() as patched:
        patched.setattr(Reads, "get", lack)
        patched.setattr(bench.broker.pulls, "_get", lack)
        if kind == "parked pull":
            producer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(), b"second")
            (answer,) = consumer.heard()
        elif kind == "pull":
            answer = consumer.pull()
        else:
            answer = consumer.ask(RequestCode.POP_MESSAGE, POP)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "Too many open files" in (answer.remark or "")
    assert consumer.pull().code == ResponseCode.SUCCESS
    assert consumer.ask(RequestCode.POP_MESSAGE, POP).code == ResponseCode.SUCCESS


def test_a_service_that_lacks_a_descriptor_keeps_no_other_from_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Revival reads its log; lite topics and the schema registry come behind it."""
    bench = Bench(tmp_path, auto_create_topic_enable=True)
    called = list[str]()
    monkeypatch.setattr(bench.broker.services.lite, "tick", lambda: called.append("lite") or 1_000)
    for error in (
        StoreUnreadable("no", OSError(errno.EMFILE, "no")),
        OSError(errno.EACCES, "no"),
        NotNow("no"),
    ):

        def fail(error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(bench.broker.pop, "tick", fail)
        called.clear()
        assert bench.broker.tick() == DELAY_RETRY_MS
        assert called == ["lite"]
    assert "PopService waits: " in caplog.text
    monkeypatch.undo()
    bench.close()


POP = PopMessageRequestHeader(
    consumer_group="CG",
    topic="T",
    queue_id=0,
    max_msg_nums=32,
    invisible_time=60_000,
    poll_time=0,
    born_time=0,
    init_mode=0,
    exp_type="TAG",
    exp="*",
)
