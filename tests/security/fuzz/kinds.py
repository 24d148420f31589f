"""What every target of the fuzzer is, and those that are a function of ours in this process."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from mqspark.errors import MQError
from tests.security.fuzz.cases import Chance
from tests.security.fuzz.victims import FREEZE_S, GROWTH_BYTES
from tests.support.pace import ProcessorTime

Finding = str | None


class Target:
    """A thing that is fuzzed. ``open`` starts what it needs and ``verdict`` judges the whole run."""

    name: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        yield

    def make(self, chance: Chance) -> bytes:
        raise NotImplementedError(self.name)

    def run(self, case: bytes) -> Finding:
        raise NotImplementedError(self.name)

    def verdict(self) -> Finding:
        return None

    def measures(self) -> str:
        return ""


class Decoding(Target):
    """Bytes into a function of ours: only the declared errors, not a second of processor time, no memory kept."""

    errors: tuple[type[Exception], ...] = (MQError,)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.worst_s = 0.0
        self._cases = 0
        self._base_bytes = 0

    def decode(self, case: bytes) -> None:
        raise NotImplementedError(self.name)

    def run(self, case: bytes) -> Finding:
        try:
            with ProcessorTime() as cost:
                self.decode(case)
        except self.errors:
            pass
        except Exception:
            return traceback.format_exc()
        took = cost.seconds
        self.worst_s = max(self.worst_s, took)
        self._cases += 1
        if self._cases == 2_000:
            self._base_bytes = own_bytes()
        return f"{took:.2f} s of processor time for {len(case)} bytes" if took > FREEZE_S else None

    def verdict(self) -> Finding:
        grown = own_bytes() - self._base_bytes if self._base_bytes else 0
        return f"memory grew by {grown >> 20} MiB over {self._cases} cases" if grown > GROWTH_BYTES else None

    def measures(self) -> str:
        grown = own_bytes() - self._base_bytes if self._base_bytes else 0
        return (
            f"worst case {self.worst_s * 1000:.0f} ms of processor time, memory {grown / (1 << 20):+.1f} MiB"
        )


def own_bytes() -> int:
    """Memory of this process, without the pages of mapped files."""
    return int(re.findall(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024
