"""A disk that is really full, below a real process: it refuses, lives, serves, and goes on when there is room again.

The disk is a tmpfs of 24 MiB, which only root may mount; elsewhere ``test_failing_disk.py`` says the same with a file
layer that has no space.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import web
from tests.support.processes import (
    mqspark_command,
    process,
    ready_line,
    run_python,
    run_to_end,
    set_options,
    stop,
)
from tests.support.remoting import (
    GET_MAX_OFFSET,
    SEND_MESSAGE_V2,
    UPDATE_AND_CREATE_TOPIC,
    RawConnection,
    Reply,
    send_fields,
    topic_fields,
)
from tests.support.waiting import eventually

DELETE_TOPIC_IN_BROKER = 215
SERVICE_NOT_AVAILABLE = 14
DISK_BYTES = 24 << 20
BODY = b"b" * 30_000
NO_MARKS = {
    "diskMaxUsedSpaceRatio": 100,
    "diskSpaceCleanForciblyRatio": 100,
    "diskSpaceWarningLevelRatio": 100,
}
"""So that nothing refuses a message before the disk does."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "disk"
    point.mkdir()
    mounted = run_to_end(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(point)])
    if mounted.returncode:
        pytest.skip(f"this machine does not let the test mount a small disk: {mounted.stderr.strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@contextmanager
def broker(
    disk: Path, log: Path, **settings: object
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    everything = {
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": 4 << 20,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "cleanResourceInterval": 200,
        **settings,
    }
    assignments = set_options(everything)
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
    command = [*mqspark_command(), "dev", "--store", str(disk / "store"), *ports, *assignments]
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield child, ready_line(child, log)


def send(connection: RawConnection, topic: str, body: bytes = BODY) -> Reply:
    return connection.request(
        SEND_MESSAGE_V2, body, **send_fields(topic, 0, "KEYS\x01k\x02", g=int(time.time() * 1000))
    )


def send_until(connection: RawConnection, topic: str, code: int, *, wait_s: float = 60) -> list[int]:
    """Queue offsets of what was taken meanwhile."""
    taken: list[int] = []
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        reply = send(connection, topic)
        if reply.code == 0:
            taken.append(int(reply.ext["queueOffset"]))
        if reply.code == code:
            return taken
        assert reply.code in (0, SERVICE_NOT_AVAILABLE), (reply.code, reply.remark)
    raise AssertionError(f"no answer {code} in {wait_s} s")


def read_all(connection: RawConnection, topic: str) -> int:
    end = int(connection.request(GET_MAX_OFFSET, topic=topic, queueId=0).ext["offset"])
    offset = 0
    while offset < end:
        reply = connection.pull(topic, 0, offset)
        assert reply.code == 0, (reply.code, reply.remark)
        assert reply.body.count(BODY) >= 1
        offset = int(reply.ext["nextBeginOffset"])
    return end


def fill(disk: Path) -> Path:
    """Takes every byte that is left."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size >= 512:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return path


def is_ready(ready: dict[str, str]) -> bool:
    return web.get(f"{ready['http']}/health/ready").status_code == 200


def health(ready: dict[str, str]) -> dict[str, object]:
    body: dict[str, object] = web.get(f"{ready['http']}/health/ready").json()
    return body


@pytest.mark.slow("fills a disk; the water marks are the fast twin")
def test_no_space_at_all(disk: Path, tmp_path: Path) -> None:
    with broker(disk, tmp_path / "log", **NO_MARKS) as (child, ready):
        with RawConnection(ready["broker"], 60) as connection:
            for topic in ("Full", "Doomed"):
                assert send(connection, topic).code == 0
            filler = fill(disk)
            taken = 1 + len(send_until(connection, "Full", SERVICE_NOT_AVAILABLE))
            refused = send(connection, "Full")
            assert refused.code == SERVICE_NOT_AVAILABLE
            assert "space" in (refused.remark or "")
            assert not is_ready(ready)
            assert "space" in str(health(ready)["sendsRefused"])
            # A new topic: its name is kept in a config file, which cannot be written now.
            connection.request(UPDATE_AND_CREATE_TOPIC, **topic_fields("New"))
            eventually(lambda: health(ready)["housekeepingError"] is not None)
            assert read_all(connection, "Full") == taken
            assert connection.request(DELETE_TOPIC_IN_BROKER, topic="Doomed").code == 0
            assert send(connection, "Full").code in (0, SERVICE_NOT_AVAILABLE)
            assert child.poll() is None
            assert health(ready)["store"]["readOnly"] is None  # type: ignore[index]
            filler.unlink()
            eventually(lambda: is_ready(ready))  # nobody sends meanwhile
            send_until(connection, "Full", 0)
            send_until(connection, "New", 0)
            eventually(lambda: health(ready)["housekeepingError"] is None)
            count = read_all(connection, "Full")
            assert count >= taken + 1
        assert stop(child) == 0, (tmp_path / "log").read_text()
    with (
        broker(disk, tmp_path / "log", **NO_MARKS) as (_, ready),
        RawConnection(ready["broker"], 60) as connection,
    ):
        assert read_all(connection, "Full") == count


def test_the_water_marks_refuse_in_time_and_recover(disk: Path, tmp_path: Path) -> None:
    marks = {"diskMaxUsedSpaceRatio": 60, "diskSpaceCleanForciblyRatio": 70, "diskSpaceWarningLevelRatio": 80}
    with broker(disk, tmp_path / "log", cleanFileForciblyEnable=False, **marks) as (child, ready):
        with RawConnection(ready["broker"], 60) as connection:
            assert send(connection, "Full").code == 0
            used = os.statvfs(disk)
            filler = disk / "filler"
            filler.write_bytes(bytes(int(used.f_bavail * used.f_frsize * 0.75)))
            taken = 1 + len(send_until(connection, "Full", SERVICE_NOT_AVAILABLE))
            # A fast machine fills the disk to the last block before the marks are looked at again.
            eventually(lambda: health(ready)["store"]["diskFull"] is not None)  # type: ignore[index]
            assert read_all(connection, "Full") == taken
            filler.unlink()
            send_until(connection, "Full", 0)
            assert health(ready)["store"]["diskFull"] is None  # type: ignore[index]
        assert stop(child) == 0


_FILL = """
import sys
from tests.support.store_tools import (checkpoint, flush, make_store, put, query)
from mqspark.errors import DiskFull
from pathlib import Path
store = make_store(Path(sys.argv[1]), mapped_file_size_commit_log=1 << 20, max_hash_slot_num=500, max_index_num=2000)
store.open()
refused = taken = 0
while refused < 50:
    try:
        put(store, "T", taken % 40, b"x" * 900, b"KEYS\\x01k%d\\x02" % taken)
        taken += 1
    except DiskFull:
        refused += 1
    flush(store)
    checkpoint(store)
assert store.condition.read_only is None, store.condition.read_only
query(store, "T", "k1", 9, 0, 1 << 62)
print(taken)
"""


@pytest.mark.slow("fills a disk by a process; the water marks are the fast twin")
def test_a_full_disk_sends_no_signal(disk: Path) -> None:
    """Mapped queue and index files are written only where there are blocks: else this would end with SIGBUS."""
    done = run_python(_FILL, str(disk / "store"))
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert int(done.stdout) > 5000
