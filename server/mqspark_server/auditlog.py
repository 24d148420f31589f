"""The audit log: who did what to which resource from where, one JSON object a line.

    {"at":"2026-01-31T12:00:00.000Z","user":"alice","peer":"10.0.0.7:51234","request":"SEND_MESSAGE_V2","code":310,
     "resources":["Topic:Orders"],"decision":"denied","reason":"..."}

The file is rotated by size. The number of lines per second is limited; the next line says how many were suppressed.
Refusals and changes take precedence over uses of messages, of which only the first of each connection is written.
"""

from __future__ import annotations

import datetime
import json
import logging
import logging.handlers
import os
from pathlib import Path

from mqspark.auth.gate import Audited
from mqspark.base.clock import Clock
from mqspark.base.logs import printable, sparing
from mqspark.protocol.codes import RequestCode

LINES_PER_S = 200
USES_PER_S = 50
"""Limit of lines per second that are neither refusals nor changes."""

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
        self._lines = self._uses = 0
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
            self._lines = self._uses = 0
        is_use = audited.allowed and not audited.changes
        if self._lines >= LINES_PER_S or (is_use and self._uses >= USES_PER_S):
            self.suppressed += 1
            self._unreported += 1
            return
        self._lines += 1
        self._uses += is_use
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


class _Private(logging.handlers.RotatingFileHandler):
    """Files readable only by their owner. A failing file does not fail the request."""

    def _open(self):  # type: ignore[no-untyped-def]
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        return os.fdopen(fd, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        _log.exception("the audit log %s cannot be written", self.baseFilename)
