"""The audit log: who did what to which resource from where, one JSON object a line.

    {"at":"2026-01-31T12:00:00.000Z","user":"alice","peer":"10.0.0.7:51234","request":"SEND_MESSAGE_V2","code":310,
     "resources":["Topic:Orders"],"decision":"denied","reason":"..."}

The file is rotated by size. The number of lines per second is limited; the next line says how many were suppressed.
Changes, refusals and uses of messages have limits of their own, so that refusals, which strangers can cause, hide no
change. Of the uses only the first of each connection is written.
"""

from __future__ import annotations

import datetime
import json
import logging
import logging.handlers
import os
from collections import Counter
from pathlib import Path

from mqspark.auth.gate import Audited
from mqspark.base.clock import Clock
from mqspark.base.logs import printable, sparing
from mqspark.protocol.codes import RequestCode
from mqspark.store.disk.files import give_to_owner

CHANGES_PER_S = 200
REFUSALS_PER_S = 200
USES_PER_S = 50
"""Limit of lines per second that are neither refusals nor changes."""
_LIMITS = {"change": CHANGES_PER_S, "refusal": REFUSALS_PER_S, "use": USES_PER_S}

_log = sparing(__name__)
_NAMES = {int(code): code.name for code in RequestCode}


class AuditLog:
    """Raises OSError when the file cannot be opened. A line that cannot be written is counted and logged."""

    def __init__(self, path: Path, clock: Clock, *, max_bytes: int, files: int) -> None:
        self._clock = clock
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._handler = _Private(path, maxBytes=max_bytes, backupCount=files - 1, encoding="utf-8")
        self._is_closed = False
        self._second = 0
        self._lines: Counter[str] = Counter()
        """Kind → its lines in this second."""
        self.suppressed = 0
        """Total number of suppressed lines."""
        self._unreported = 0

    def write(self, audited: Audited) -> None:
        if self._is_closed:
            # A connection may end after the log was closed, and the handler would reopen the file.
            return
        now_ms = self._clock.now_ms()
        if now_ms // 1000 != self._second:
            self._second = now_ms // 1000
            self._lines.clear()
        kind = _kind(audited)
        if self._lines[kind] >= _LIMITS[kind]:
            self.suppressed += 1
            self._unreported += 1
            return
        self._lines[kind] += 1
        at = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
        line: dict[str, object] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "user": printable(audited.user),
            "peer": audited.peer,
            "request": printable(audited.request) or _NAMES.get(audited.code, "UNKNOWN"),
            "code": audited.code,
            "resources": [printable(name) for name in audited.resources],
            "decision": "allowed" if audited.allowed else "denied",
        }
        if audited.reason:
            line["reason"] = printable(audited.reason)
        if self._unreported:
            line["suppressed"] = self._unreported
            self._unreported = 0
        self._handler.emit(logging.makeLogRecord({"msg": json.dumps(line, ensure_ascii=False)}))

    def close(self) -> None:
        self._is_closed = True
        self._handler.close()


def _kind(audited: Audited) -> str:
    if not audited.allowed:
        return "refusal"
    return "change" if audited.changes else "use"


class _Private(logging.handlers.RotatingFileHandler):
    """Files readable only by their owner. A failing file does not fail the request."""

    def _open(self):  # type: ignore[no-untyped-def]
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        give_to_owner(self.baseFilename, fd)
        return os.fdopen(fd, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        _log.exception("the audit log %s cannot be written", self.baseFilename)
