"""Logs that differ: a slave that has what its master does not have."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqspark.broker.config import BrokerRole
from mqspark.broker.replication.follower import FollowerDiverged
from mqspark.errors import DiskFull, NotNow
from mqspark.store.queue.consumequeue import FILLER
from tests.support.storefiles import log_bytes
from tests.unit.broker.replication.test_follower import (
    Link,
    assert_equal,
    connected,
    fill,
    follower_of,
    make_master,
    make_slave,
    pieces,
)
from tests.unit.broker_kit import Bench


@dataclass
class Fork:
    """Two masters whose logs are the same up to ``common``, and a slave with the log of the other."""

    master: Bench
    other: Bench
    slave: Bench
    common: int


def fork(tmp_path: Path, before: int = 10, after: int = 20) -> Fork:
    master = make_master(tmp_path / "m")
    if before:
        fill(master, before)
    common = master.store.log.position
    master.close()
    shutil.copytree(tmp_path / "m", tmp_path / "o")
    master.open()
    other, slave = make_master(tmp_path / "o"), make_slave(tmp_path / "s")
    fill(master, after, seed=2)
    other.clock.advance(1)
    fill(other, 20, seed=3)
    with connected(other, slave) as link:
        link.carry(pieces(1))
    return Fork(master, other, slave, common)


@pytest.fixture
def forked(tmp_path: Path) -> Fork:
    return fork(tmp_path)


def take_back(slave: Bench) -> None:
    """What the shell does within a second: nothing is cut before everything is synced."""
    slave.flush()
    slave.run_jobs()


def meet(found: Fork, check_bytes: int | None = None) -> FollowerDiverged:
    """The slave connects to the master whose log differs."""
    if check_bytes is not None:
        follower_of(found.slave).check_bytes = check_bytes
    with connected(found.master, found.slave) as link, pytest.raises(FollowerDiverged) as error:
        link.carry(pieces(2))
    return error.value


def saved(slave: Bench) -> dict[str, bytes]:
    folder = slave.directory / "mqspark.diverged"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def follow_to_the_end(found: Fork) -> None:
    with connected(found.master, found.slave) as link:
        link.carry(pieces(3))
    assert_equal(found.master, found.slave)
    for topic in ("T", "U"):
        bodies = [one.body for one in found.master.records(topic)]
        assert [one.body for one in found.slave.records(topic)] == bodies


@pytest.mark.parametrize("after", [0, 20, 60])
def test_what_the_master_does_not_have_is_taken_back_and_saved(tmp_path: Path, after: int) -> None:
    found = fork(tmp_path, after=max(after, 1))
    slave = found.slave
    end = slave.store.log.position
    theirs = log_bytes(slave.directory)[:end]
    problem = meet(found)
    assert f"the log here is taken back to {found.common}" in str(problem)
    assert slave.store.log.position == end, "nothing is appended meanwhile"
    with pytest.raises(NotNow, match="is being taken back"):
        Link(found.master, slave)
    take_back(slave)
    assert slave.store.log.position == slave.store.pipeline.stored_end == found.common
    ((name, data),) = saved(slave).items()
    assert name.startswith(f"{found.common:020d}-")
    assert data == theirs[found.common :]
    follow_to_the_end(found)
    slave.run_jobs()
    slave.close()
    slave.open()
    assert_equal(found.master, slave)
    for bench in (found.master, found.other, slave):
        bench.close()


@pytest.mark.parametrize("when", ["before", "saved", "cut"])
def test_a_kill_while_it_is_taken_back(forked: Fork, when: str) -> None:
    slave = forked.slave
    meet(forked)
    if when != "before":
        slave.flush()
        (job,) = slave.store.maintenance()
        job.run()
        if when == "cut":
            job.done()
    slave.store.abandon()
    slave.open()
    if when != "cut":
        meet(forked)
        take_back(slave)
    assert slave.store.log.position == forked.common
    follow_to_the_end(forked)


def test_a_full_disk_keeps_no_part_of_what_is_taken_back(
    forked: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    slave = forked.slave
    meet(forked)
    slave.flush()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for _ in range(3):
        (job,) = slave.store.maintenance()
        with monkeypatch.context() as patch:
            patch.setattr(slave.store.files, "sync", full)
            with pytest.raises(DiskFull, match="differs from the master's"):
                job.run()
        job.done(DiskFull("no space"))
        slave.clock.advance(1_000)
        assert saved(slave) == {}
    take_back(slave)
    assert len(saved(slave)) == 1
    follow_to_the_end(forked)


def test_everything_is_compared_before_a_log_is_called_another(forked: Fork) -> None:
    slave = forked.slave
    problem = meet(forked, check_bytes=300)
    assert "4800 bytes are compared next" in str(problem)
    assert not slave.store.copy.is_cutting
    while not slave.store.copy.is_cutting:
        meet(forked)
    take_back(slave)
    assert slave.store.log.position == forked.common
    follow_to_the_end(forked)


def test_a_log_without_a_common_record_is_left_alone(tmp_path: Path) -> None:
    found = fork(tmp_path, before=0)
    end = found.slave.store.log.position
    assert "they have no record in common" in str(meet(found))
    found.slave.run_jobs()
    assert found.slave.store.log.position == end
    assert saved(found.slave) == {}
    for bench in (found.master, found.other, found.slave):
        bench.close()


def test_a_slave_that_is_only_ahead_keeps_what_it_has(tmp_path: Path) -> None:
    """Its master may have lost it in a power cut. It reports what both have."""
    master = make_master(tmp_path / "m")
    fill(master, 10)
    common = master.store.log.position
    master.close()
    shutil.copytree(tmp_path / "m", tmp_path / "o")
    master.open()
    other, slave = make_master(tmp_path / "o"), make_slave(tmp_path / "s")
    fill(other, 5, seed=1)
    with connected(other, slave) as link:
        link.carry(pieces(1))
    end = slave.store.log.position
    with connected(master, slave) as link:
        link.carry(pieces(1))
        assert link.replica.acked == common
        assert slave.store.log.position == end > common


def test_an_old_master_becomes_the_slave_of_its_slave(tmp_path: Path) -> None:
    old, slave = make_master(tmp_path / "m"), make_slave(tmp_path / "s")
    fill(old, 15)
    with connected(old, slave) as link:
        link.carry(pieces(1))
    common = old.store.log.position
    fill(old, 5, seed=1)  # not copied
    old.close()
    slave.close()
    old.settings.update(broker_role=BrokerRole.SLAVE, broker_id=1)
    slave.settings.update(broker_role=BrokerRole.ASYNC_MASTER, broker_id=0)
    old.open()
    slave.open()
    slave.clock.advance(5)
    fill(slave, 30, seed=2)
    found = Fork(slave, slave, old, common)
    meet(found)
    take_back(old)
    follow_to_the_end(found)


def test_a_hole_does_not_hide_the_records_before_it(tmp_path: Path) -> None:
    """A power cut may leave one in each queue: fillers stand for what it took."""
    bench = make_master(tmp_path / "m")
    fill(bench, 40)
    store = bench.store
    queues = [queue for queue in store.table.queues.values() if queue.max_offset > queue.min_offset]
    positions = sorted(queue.entry(offset)[0] for queue in queues for offset in range(queue.max_offset))
    begin, end = positions[10], positions[20]
    for queue in queues:
        for offset in range(queue.max_offset):
            if begin <= queue.entry(offset)[0] < end:
                queue.replace(offset, FILLER)
    assert store.copy.last_whole_record(0, end) == begin
