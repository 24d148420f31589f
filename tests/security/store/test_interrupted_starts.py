"""Threat: a process that repairs a damaged store is killed in the middle, and the next start believes what it left; a
store that cannot be opened ends the broker with a traceback, or not at all.

The start runs in a child process that ends itself at one of many calls of the store, written maps included, as SIGKILL
would end it there; twice, for a start that repairs after an interrupted one is interrupted, too.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import FrameType

import pytest

from tests.security.store.damage_table import DAMAGE, MESSAGES, QUEUE_FILE_BYTES, SETTINGS, expected
from tests.support.draws import some
from tests.support.processes import run_to_end, set_options
from tests.support.store_tools import QuickFiles, copy_store, crash, drain, flush, opened, put

MOST_POINTS = 12
POINTS = [4, pytest.param(MOST_POINTS, marks=pytest.mark.slow("more kills; four are the fast twin"))]
REBUILT = (
    "a queue is missing",
    "all queues are missing",
    "a queue's first file is missing",
    "a queue's file in the middle has 13 bytes",
    "a queue's last file is missing",
    "entries before the last one are zero, after a kill",
    "the last segment is missing",
    "the last segment is halved",
)
SIZES = {"mapped_file_size_consume_queue": QUEUE_FILE_BYTES, "max_index_num": SETTINGS["maxIndexNum"]}
KILLED = 9


def start_killed_at(root: Path, limit: int, count_to: Path | None = None) -> int:
    """Open the store in a child that is gone at its ``limit``th call of a function of the store; its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            if event == "call" and "/mqspark/store/" in frame.f_code.co_filename:
                calls += 1
                if calls == limit:
                    os._exit(KILLED)

        sys.setprofile(count)
        opened(root, None, QuickFiles(), **SIZES)
        sys.setprofile(None)
        if count_to is not None:
            count_to.write_text(str(calls))
        code = 0
    finally:
        os._exit(code)


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return copy_store(source, target)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", some(REBUILT, 2))
@pytest.mark.parametrize("points", POINTS)
def test_a_start_that_is_killed_while_it_repairs_is_made_good(
    sound_store: Path, tmp_path: Path, name: str, points: int
) -> None:
    damaged, root = copied(sound_store, tmp_path / "damaged"), tmp_path / "store"
    DAMAGE[name](damaged)
    counted = tmp_path / "calls"
    assert start_killed_at(copied(damaged, root), 0, counted) == 0
    calls = int(counted.read_text())
    assert calls > 10 * MOST_POINTS
    low, high = expected(name).gone
    for point in range(points):
        limit = calls * (2 * point + 1) // (2 * points)
        copied(damaged, root)
        assert start_killed_at(root, limit) == KILLED
        start_killed_at(root, limit)
        store = opened(root, None, QuickFiles(), **SIZES)
        bodies = [int(message.body[:6]) for message in drain(store, "Orders", 0)]
        assert bodies == [*range(low), *range(high, MESSAGES)], limit
        assert [message.body for message in drain(store, "Slow", 1)] == [b"slow"]
        offset, _, _ = put(store, "Orders", 0, b"new")
        flush(store)
        assert offset == MESSAGES, f"killed at call {limit}: an offset is given out twice"
        crash(store)


@pytest.mark.parametrize("name", some([name for name in DAMAGE if expected(name).refused], 2))
def test_a_store_that_cannot_be_opened_ends_the_broker_with_one_line(
    sound_store: Path, tmp_path: Path, name: str
) -> None:
    root = copied(sound_store, tmp_path / "store")
    DAMAGE[name](root)
    settings = {**SETTINGS, "storePathRootDir": root, "listenPort": 0, "bindAddress": "127.0.0.1"}
    done = run_to_end([sys.executable, "-m", "mqspark_server.cli", "broker", "run", *set_options(settings)])
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("mqspark: error: ")]
    want = expected(name).refused.replace("[Errno 21] ", "")
    assert want in line
