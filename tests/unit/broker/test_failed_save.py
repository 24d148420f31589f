"""A table that cannot be saved: the disk is not to be trusted, so nothing more is accepted; reads go on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.store import OsFiles
from mqspark.store.disk.files import StrPath
from tests.support.remoting import topic_fields
from tests.support.store_tools import QuickFiles
from tests.unit.broker.send.test_broker_send import SEND, send_ext
from tests.unit.broker_kit import Bench, Peer


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_sends_are_refused_after_a_failed_save_but_not_for_want_of_space(
    tmp_path: Path, bench: Bench, peer: Peer, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    assert peer.ask(SEND, send_ext(), b"a").code == ResponseCode.SUCCESS
    rename = OsFiles.rename

    def fail(self: OsFiles, source: StrPath, target: StrPath) -> None:
        if Path(target).parent.name == "config":
            raise OSError(error, os.strerror(error), str(target))
        rename(self, source, target)

    monkeypatch.setattr(OsFiles, "rename", fail)
    peer.give(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("New"))
    bench.broker.turn()
    with pytest.raises(OSError, match="config"):
        bench.run_jobs()
    monkeypatch.undo()
    bench.run_jobs()  # the file can be saved again: that heals nothing
    peer.heard()
    answer = peer.ask(SEND, send_ext(), b"b")
    if error == errno.ENOSPC:
        assert answer.code == ResponseCode.SUCCESS
        assert (tmp_path / "config" / "topics.json").exists()
        return
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "saving config/" in (answer.remark or "")
    assert os.strerror(error) in (answer.remark or "")
    assert peer.ask(SEND, send_ext(), b"c").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert peer.pull().code == ResponseCode.SUCCESS
    assert bench.store.condition.read_only is not None


@pytest.mark.parametrize("verb", ["sync", "write"])
def test_a_timer_log_that_fails_stops_sends_too(
    bench: Bench, peer: Peer, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    assert (
        peer.ask(SEND, send_ext(properties="TIMER_DELAY_MS\x0160000\x02"), b"a").code == ResponseCode.SUCCESS
    )
    sound = getattr(QuickFiles, verb)

    def fail(self: QuickFiles, fd: int, *more: object) -> None:
        if "/timerlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sound(self, fd, *more)

    monkeypatch.setattr(QuickFiles, verb, fail)
    bench.broker.tick()
    bench.clock.advance(10_000)
    if verb == "sync":
        with pytest.raises(OSError, match="Input/output error"):
            bench.run_jobs()
    monkeypatch.undo()
    answer = peer.ask(SEND, send_ext(), b"b")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "saving config/timercheck failed: [Errno 5] Input/output error" in (answer.remark or "")
