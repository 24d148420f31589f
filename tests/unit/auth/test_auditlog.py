"""The audit log's file: private, bounded, one JSON object a line whatever a peer sends."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mqspark.auth.gate import Audited
from mqspark_server.auditlog import REFUSALS_PER_S, USES_PER_S, AuditLog
from tests.support.clocks import ManualClock


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(number: int = 0, *, user: str = "alice", allowed: bool = False, changes: bool = False) -> Audited:
    return Audited(user, f"10.0.0.1:{number}", 310, ("Topic:T",), allowed, "", changes)


def test_lines_are_one_object_each_and_limited(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "audit.log"
    log = AuditLog(path, clock, max_bytes=1 << 20, files=2)
    log.write(told(user='eve"\n{"user":"root"}\r' + "x" * 1000))
    (line,) = lines(path)
    assert line["user"].startswith('eve"')
    assert len(line["user"]) < 400
    assert (line["request"], line["decision"], line["at"]) == (
        "SEND_MESSAGE_V2",
        "denied",
        "2023-11-14T22:13:20.000Z",
    )
    for number in range(100):
        log.write(told(number, allowed=True))
    assert len(lines(path)) == 1 + USES_PER_S
    for number in range(1000):
        log.write(told(number))
    assert len(lines(path)) == REFUSALS_PER_S + USES_PER_S
    log.write(told(user="strangers hide no change", allowed=True, changes=True))
    assert lines(path)[-1]["user"] == "strangers hide no change"
    clock.advance(1000)
    log.write(told())
    suppressed = 1101 - REFUSALS_PER_S - USES_PER_S
    assert sum(line.get("suppressed", 0) for line in lines(path)) == log.suppressed == suppressed
    log.close()


def test_files_are_rotated_and_private(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "audit.log"
    log = AuditLog(path, clock, max_bytes=4_000, files=3)
    for number in range(300):
        clock.advance(100)
        log.write(told(number))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(file.stat().st_size <= 4_000 and file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert lines(path)[-1]["peer"] == "10.0.0.1:299"


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def opened_on_a_full_disk(fd: int, *_: Any, **__: Any) -> Full:
    os.close(fd)
    return Full()


def test_a_log_that_cannot_be_written_fails_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", opened_on_a_full_disk)
        log = AuditLog(tmp_path / "audit.log", ManualClock(), max_bytes=0, files=1)
    log.write(told())
    log.close()
    assert "cannot be written" in caplog.text
