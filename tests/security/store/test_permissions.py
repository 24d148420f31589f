"""Threat: an operator takes permissions from a store (``chmod``, ``chown``, a restore as another user): a broker that
cannot read a file takes it for missing and loses what is in it, or one that runs never goes on.

The scenes run in a process to which permissions apply. They return what is wrong.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqspark.base.config import camel_case
from mqspark.errors import NotNow, StoreError
from mqspark.protocol.codes import ResponseCode
from mqspark.store.disk.diskjobs import run_here
from mqspark_server.commands.local.store_cli import store
from tests.support.processes import run_to_end, set_options
from tests.support.unprivileged import unprivileged
from tests.unit.broker_kit import SEND, Bench, send_ext

HERE = Path(__file__).resolve().parents[3]
SETTINGS = {
    "mapped_file_size_commit_log": 16_384,
    "mapped_file_size_consume_queue": 400,
    "mapped_file_size_timer_log": 52 * 64 + 16,
    "allocation_step_commit_log": 4096,
    "max_hash_slot_num": 16,
    "max_index_num": 32,
}
REFUSED = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)


class Watched(Bench):
    """A broker whose jobs may fail, as those of a real one."""

    def __init__(self, root: Path, *, start: bool = True) -> None:
        super().__init__(root, start=start, store_settings=SETTINGS)

    def run_jobs(self) -> None:
        for job in self.broker.jobs():
            with contextlib.suppress(OSError, NotNow):
                run_here(job)

    def send(self, topic: str, body: bytes, properties: str = "") -> int:
        return self.peer().ask(SEND, send_ext(topic, 0, properties), body).code

    def end(self) -> None:
        """As well as it can."""
        try:
            self.close()
        except (OSError, StoreError):
            self.store.abandon()

    def seen(self) -> tuple[list[bytes], int, list[int]]:
        """Messages, the offset of a group, and how many wait for the wheel and on levels."""
        state, offsets = self.broker.state, self.store.offsets
        ends = [offsets.max_offset("rmq_sys_wheel_timer", 0), offsets.max_offset("SCHEDULE_TOPIC_XXXX", 4)]
        return [record.body for record in self.records("T")], state.offsets.query("G", "T", 0), ends


def filled(root: Path) -> Watched:
    bench = Watched(root)
    for number in range(60):
        assert bench.send("T", b"%d" % number * 100, f"KEYS\x01k{number}\x02") == 0
    assert bench.send("L", b"timer", "TIMER_DELAY_MS\x0150000\x02") == 0
    assert bench.send("L", b"delayed", "DELAY\x015\x02") == 0
    bench.broker.state.offsets.commit("G", "T", 0, 30)
    for _ in range(3):
        bench.run_for(20_000, 5_000)
        bench.run_jobs()
        bench.broker.state.offsets.commit("G", "T", 0, 30)
    return bench


@contextlib.contextmanager
def taken(path: Path, mode: int) -> Iterator[None]:
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode)
    assert not os.access(path, os.W_OK), "permissions do not apply to this process"
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # it was replaced, or removed
            path.chmod(before)


def started(root: Path) -> tuple[str, object]:
    """Why a broker does not start, or "" and what it has."""
    bench = Watched(root, start=False)
    try:
        bench.open()
    except (OSError, StoreError) as error:
        bench.store.abandon()
        return str(error), None
    seen = bench.seen()
    bench.end()
    return "", seen


def starts(root: Path) -> Iterator[str]:
    """A start without a right to a file or directory names it, or needs it not; the next start has everything."""
    bench = filled(root)
    seen = bench.seen()
    bench.end()
    for path in sorted(root.rglob("*")):
        for mode in (0, 0o500 if path.is_dir() else 0o400):
            if not path.exists():
                continue
            with taken(path, mode):
                refusal, found = started(root)
            what = f"{path.relative_to(root)} {mode:03o}"
            if refusal and not ("ermission" in refusal and str(path) in refusal):
                yield f"{what}: {refusal}"
            if not refusal and found != seen:
                yield f"{what}: it starts with {found}"
            if (after := started(root)) != ("", seen):
                yield f"{what}: the next start has {after}"


class Sender:
    """Sends to an old topic and to new ones, plain and delayed messages."""

    def __init__(self, bench: Watched, number: int) -> None:
        self._bench = bench
        self._number = number
        self.taken: dict[str, list[bytes]] = {"T": bench.seen()[0]}
        self.failures: list[int] = []

    def send(self, count: int) -> int:
        """How many were refused."""
        refused = 0
        for each in range(count):
            for topic in ("T", f"N{self._number}-{each % 3}"):
                body = b"%d" % each * 200
                code = self._bench.send(topic, body, f"KEYS\x01n{each}\x02DELAY\x01{each % 2}\x02")
                if code == 0:
                    self.taken.setdefault(topic, []).append(body)
                elif code not in REFUSED:
                    self.failures.append(code)
                refused += code != 0
            self._bench.run_for(2_000, 1_000)
            self._bench.run_jobs()
        return refused


def runs(root: Path) -> Iterator[str]:
    """A broker goes on as far as it can, and wholly when it may again."""
    filled(root).end()
    places = [root, *(path for path in sorted(root.rglob("*")) if path.is_dir())]
    for number, (path, mode) in enumerate((path, mode) for path in places for mode in (0, 0o500)):
        what = f"{path.relative_to(root)} {mode:03o}"
        bench = Watched(root)
        sender = Sender(bench, number)
        with taken(path, mode):
            sender.send(20)
        bench.run_for(10_000, 1_000)
        bench.run_jobs()
        if bench.store.condition.read_only is not None:
            yield f"{what}: read-only: {bench.store.condition.read_only}"
        elif sender.send(20):
            yield f"{what}: it goes on refusing"
        if sender.failures:
            yield f"{what}: sends got {sender.failures}"
        bench.run_for(60_000, 1_000)
        bench.end()
        bench.open()
        for topic, bodies in sender.taken.items():
            found = [record.body for record in bench.records(topic)]
            if sorted(found) != sorted(bodies):
                yield f"{what}: {len(bodies)} were taken of {topic}, {len(found)} are there"
        bench.end()


def checks(root: Path) -> Iterator[str]:
    """``fsck`` finds nothing wrong in what it can read, and names what it cannot."""
    filled(root).end()
    options = ["fsck", str(root), *set_options({camel_case(name): value for name, value in SETTINGS.items()})]
    for path in sorted(root.rglob("*")):
        with taken(path, 0):
            done = CliRunner().invoke(store, options)
        text = f"{done.output} {done.exception}"
        is_named = done.exit_code == 1 and str(path) in text and "ermission" in text
        is_read = done.exit_code == 0 and not path.is_dir() and "ermission" not in text
        if not is_named and not is_read:
            yield f"{path.relative_to(root)}: {done.exit_code} {done.output!r} {done.exception!r}"


SCENES: dict[str, Callable[[Path], Iterator[str]]] = {"starts": starts, "runs": runs, "checks": checks}


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(
            "starts", marks=pytest.mark.slow("three starts for each file; test_shortages is the fast twin")
        ),
        pytest.param(
            "runs", marks=pytest.mark.slow("a broker for each folder; test_shortages is the fast twin")
        ),
        "checks",
    ],
)
def test_a_permission_that_is_taken_costs_nothing(tmp_path: Path, scene: str) -> None:
    done = run_to_end(unprivileged(sys.executable, "-m", __name__, scene, str(tmp_path / "store")), cwd=HERE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-4_000:]


if __name__ == "__main__":
    for wrong in SCENES[sys.argv[1]](Path(sys.argv[2])):
        print(wrong)
