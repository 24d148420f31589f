"""Whether the wall clock may decide what is too old: what is deleted by age is gone for good, and a clock that steps
forward makes everything old at once.

Its progress is compared with that of the monotonic clock, and at a start with ``mqspark.clock``, the last time at which
it was trusted. After a step nothing is deleted by age for a day, until the clock is right again, or until an operator
asks for a deletion. A stop of more than a day looks like a step. RocketMQ ignores the file:

    mqspark-clock-1 00001700000000000 9d0ad5c7      wall time in ms, CRC-32 of what is before

The file is written in place and never synced: without it a start compares nothing. Must not know what is deleted.
"""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from mqspark.base.clock import Clock
from mqspark.base.logs import sparing
from mqspark.store.disk.files import FileLayer

log = sparing(__name__, lines=5)

STEP_MS = 600_000
"""Difference between the progress of the two clocks that is a step. A disciplined clock differs by a second a day."""
WAIT_MS = 86_400_000
"""How long nothing is deleted by age after a step; and the longest stop that is not taken for one."""
_NOTE_MS = 3_600_000
_NOTE = re.compile(rb"(mqspark-clock-1 (\d{17})) ([0-9a-f]{8})\n")


class _Seen(NamedTuple):
    """The two clocks at one moment."""

    wall_ms: int
    mono_ms: int
    slack_ms: int = 0
    """How much more the wall clock may have advanced: nobody looked."""

    def step_ms(self, now: _Seen) -> int:
        """How far the wall clock was set forward, or back, since then."""
        ahead_ms = (now.wall_ms - self.wall_ms) - (now.mono_ms - self.mono_ms)
        return max(0, ahead_ms - self.slack_ms) if ahead_ms > 0 else ahead_ms


class WallTime:
    """The wall clock of one open store. Ask ``is_trusted`` right before something is deleted because of its age."""

    def __init__(self, clock: Clock, path: Path, files: FileLayer) -> None:
        self._clock = clock
        self._path = path
        self._files = files
        self._good = self._odd = self._now()
        """When the clock was right; and since when it is not, if ``problem`` says so."""
        self.problem: str | None = None
        """Why nothing is deleted by age, or None."""

    def _now(self) -> _Seen:
        return _Seen(self._clock.now_ms(), self._clock.monotonic_ms())

    def open(self) -> None:
        """Compare with what the last process has noted."""
        now = self._now()
        self.problem = None
        found = _NOTE.fullmatch(self._files.read(self._path) or b"")
        is_sound = found is not None and found[3] == b"%08x" % zlib.crc32(found[1])
        self._good = now
        if found is not None and is_sound:
            self._good = _Seen(int(found[2]), now.mono_ms, WAIT_MS)
        if self.is_trusted:
            self._trust(now)

    @property
    def is_trusted(self) -> bool:
        now = self._now()
        step_ms = self._good.step_ms(now)
        if abs(step_ms) < STEP_MS:
            if self.problem is not None:
                log.info("the wall clock is right again")
                self._trust(now)
            elif now.mono_ms - self._good.mono_ms >= _NOTE_MS:
                self._trust(now)
        elif self.problem is None or abs(self._odd.step_ms(now)) >= STEP_MS:
            self._odd = now
            self.problem = (
                f"the wall clock was set {'forward' if step_ms > 0 else 'back'} by {abs(step_ms) // 1000} s, to"
                f" {_shown(now.wall_ms)}: nothing is deleted by its age for a day, or until an operator asks for it"
                " (mqadmin deleteExpiredCommitLog)"
            )
            log.warning("%s", self.problem)
        elif now.mono_ms - self._odd.mono_ms >= WAIT_MS:
            log.warning("the wall clock has been steady for a day: things are deleted by their age again")
            self._trust(now)
        return self.problem is None

    def trust(self) -> None:
        """An operator says that the clock is right."""
        self._trust(self._now())

    def _trust(self, now: _Seen) -> None:
        self.problem = None
        self._good = now
        self._write()

    def close(self) -> None:
        """Note when this process has seen the clock last."""
        if self.is_trusted:
            self._write()

    def _write(self) -> None:
        text = b"mqspark-clock-1 %017d" % max(0, self._clock.now_ms())
        try:
            fd = self._files.open(self._path, create=True)
            try:
                self._files.write(fd, text + b" %08x\n" % zlib.crc32(text), 0)
            finally:
                self._files.close(fd)
        except OSError as error:
            # It is tried again in an hour; a start compares with an older time meanwhile.
            log.warning("%s cannot be written: %s", self._path.name, error)


def _shown(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970"
