"""Rate limits and escapes log lines that a peer or a damaged disk can cause.

In a server all lines go through ``OneLine`` or ``JsonLines``. In an application nothing is known of the formatter, so
the loggers of clients are ``escaping``.

``sparing`` adds a filter to a module's logger. It allows a fixed number of lines per kind and minute. The
kind of a line is its level and its template, so templates must be constants. The next line of a kind gives
the number of suppressed ones. Text in arguments and exceptions is cut to a length and its control characters
are escaped, so a peer can cause neither a second line nor a long one.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Any

LOG_PERIOD_S = 60.0
MAX_LOG_KINDS = 1_000
MAX_LOGGED_TEXT = 300
MAX_LOGGED_FRAMES = 20
MAX_CAUSES = 3
MAX_OUT = 10_000
MAX_REASONS = 8
MAX_LOG_LINE = 2_000

_USER_OF_URL = re.compile(r"(?<=://)[^/\s@]++@")
# Begins at words only and takes back nothing, so that the cost is linear: servers choose what is in such a text.
_VALUE = re.compile(r"(?<![\w.-])([\w.-]++=)(?:'[^']*+'|\"[^\"]*+\"|['\"]?+[^&\s;,'\"]++)")
_SECRET = re.compile(r"secret|passw|token|signature|credential|accesskey|access_key|sig", re.I)
_filters: list[Sparing] = []


def printable(text: str, limit: int = MAX_LOGGED_TEXT) -> str:
    """``text`` on one line, cut to about ``limit`` characters."""
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def without_secrets(text: str) -> str:
    """``text`` with the users of its URLs, and the values of what is named like a secret, replaced: for errors of
    libraries, which say where they could not get to."""
    return _VALUE.sub(_without_secret, _USER_OF_URL.sub("***@", text))


def shown_setting(text: str) -> str:
    """The value of a setting as others may see it: a URL without its user and its secrets."""
    return without_secrets(text) if "://" in text else text


def _without_secret(match: re.Match[str]) -> str:
    return f"{match[1]}***" if _SECRET.search(match[1]) else match[0]


class Sparing(logging.Filter):
    """Allows ``lines`` of each kind per LOG_PERIOD_S."""

    def __init__(self, lines: int = 1) -> None:
        super().__init__()
        self._lines = lines
        self._kinds: dict[tuple[int, str], tuple[float, int]] = {}
        """Start of a kind's current period, and the lines logged in it."""

    def forget(self) -> None:
        self._kinds.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        kind = record.levelno, str(record.msg)
        begun, count = self._kinds.get(kind, (0.0, 0))
        left_out = 0
        if 0 <= record.created - begun < LOG_PERIOD_S:
            self._kinds[kind] = begun, count + 1
            if count >= self._lines:
                return False
        else:
            left_out = max(0, count - self._lines)
            if len(self._kinds) >= MAX_LOG_KINDS:
                self._kinds.clear()
            self._kinds[kind] = record.created, 1
        _clean(record)
        if left_out:
            record.msg = f"{printable(record.getMessage(), MAX_LOG_LINE)} (and {left_out} more like the last)"
            record.args = ()
        return True


def _clean(record: logging.LogRecord) -> None:
    if isinstance(record.args, tuple):
        record.args = tuple(
            argument if hasattr(argument, "__float__") else printable(str(argument))
            for argument in record.args
        )
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = _traceback(record.exc_info[1])


def _traceback(error: BaseException) -> str:
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < MAX_CAUSES:
        frames = "".join(traceback.format_tb(cause.__traceback__, -MAX_LOGGED_FRAMES))
        parts.append(f"{frames}{type(cause).__qualname__}: {printable(str(cause))}")
        cause = cause.__cause__ or cause.__context__
    return "\nbecause of\n".join(parts)


class Outages:
    """What fails again and again while something is away costs a line for each reason when it begins, and one when it
    is over. What comes in between is for debugging."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._out: dict[Hashable, set[Hashable]] = {}
        """What fails, and the reasons of which the log tells."""

    def failed(
        self,
        what: Hashable,
        error: Exception | str | None,
        text: str,
        *arguments: object,
        level: int = logging.WARNING,
    ) -> None:
        """``what`` failed by ``error``: an exception, whose type and code are the reason, or the reason itself. A line
        for debugging begins nothing."""
        reasons = self._out.get(what, set())
        is_exception = isinstance(error, BaseException)
        reason = (type(error), getattr(error, "code", None)) if is_exception else error
        is_told = reason in reasons or len(reasons) >= MAX_REASONS
        self._log.log(logging.DEBUG if is_told else level, text, *arguments)
        if level > logging.DEBUG and not is_told:
            if not reasons and len(self._out) >= MAX_OUT:
                del self._out[next(iter(self._out))]
            self._out[what] = {*reasons, reason}

    def over(self, what: Hashable, text: str, *arguments: object) -> None:
        """``what`` works: a line, if it did not."""
        if self._out and self._out.pop(what, None) is not None:
            self._log.warning(text, *arguments)


class TextEscaping(logging.Filter):
    """Lets everything through, with the text in arguments and exceptions bounded and on one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        _clean(record)
        return True


class OneLine(logging.Formatter):
    """Formats a record as one line, escaped or not. A traceback follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message, MAX_LOG_LINE)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return _traceback(ei[1]) if isinstance(ei[1], BaseException) else super().formatException(ei)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object a line: time (UTC, ISO 8601 with ms), level, logger, message, process,
    thread, and exception with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        import json  # most processes write text

        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage(), MAX_LOG_LINE),
            "process": record.process,
            "thread": record.threadName,
        }
        if record.exc_text:
            line["exception"] = record.exc_text
        elif record.exc_info and record.exc_info[1] is not None:
            line["exception"] = _traceback(record.exc_info[1])
        return json.dumps(line, ensure_ascii=True)


def sparing(name: str, *, lines: int = 1) -> logging.Logger:
    """The logger ``name``, limited to ``lines`` of a kind per minute."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, Sparing) for each in logger.filters):
        quiet = Sparing(lines)
        logger.addFilter(quiet)
        _filters.append(quiet)
    return logger


def escaping(name: str) -> logging.Logger:
    """The logger ``name``, whose lines no peer can break or fill: for code that runs in applications."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, TextEscaping) for each in logger.filters):
        logger.addFilter(TextEscaping())
    return logger


def forget() -> None:
    """Restart all periods, for tests."""
    for each in _filters:
        each.forget()
