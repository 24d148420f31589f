"""The machine under a benchmark: what it is, and whether other work disturbs the figures.

Other work is measured, not guessed: processor time of processes other than this one and its descendants, and time that
the hypervisor gave to other guests (steal). The kernel's threads and interrupts work for whoever writes and sends,
mostly the benchmark, so they do not count. The load average counts only before the first benchmark, because a benchmark
raises it itself. Source of the numbers: /proc (proc_stat, proc_loadavg).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ALTHOUGH_LOADED = "MQSPARK_BENCH_ALTHOUGH_LOADED"
"""Environment: ratios are printed on a loaded machine, too."""
LOAD_BEFORE = "MQSPARK_BENCH_LOAD_BEFORE"
"""Environment: the load average before the first benchmark of a run."""

MAX_LOAD_PER_CORE = 0.5
MAX_OTHERS = 0.10
"""Share of all processor time that other processes may use."""
MAX_STEAL = 0.05
"""Share of all processor time that the hypervisor may withhold."""

PACKAGES = ("msgspec", "uvloop", "isal", "numpy", "pyspark", "pyarrow", "delta-spark", "lz4", "zstandard")
KTHREADD = 2
"""The process number of the parent of the kernel's threads (Linux)."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What disturbs one benchmark. ``others`` and ``steal`` are shares of all processor time of the machine."""

    load_before: float
    others: float
    steal: float
    cores: int

    @property
    def reason(self) -> str | None:
        """Why figures of this time are no results; None on a quiet machine."""
        if self.load_before > MAX_LOAD_PER_CORE * self.cores:
            return f"the load average was {self.load_before:.1f} on {self.cores} cores before the first benchmark"
        if self.others > MAX_OTHERS:
            return f"other processes used {self.others:.0%} of the processor time"
        if self.steal > MAX_STEAL:
            return f"the hypervisor withheld {self.steal:.0%} of the processor time"
        return None


class Watch:
    """What disturbs this process and its descendants from now on."""

    def __init__(self, proc: Path = _PROC, *, cores: int | None = None) -> None:
        self._proc = proc
        self._cores = cores or os.cpu_count() or 1
        self._load = float(os.environ.get(LOAD_BEFORE) or load_average(proc))
        self._at_start = (*_machine_s(proc), own_s(proc) + own_s(proc, KTHREADD))

    def disturbance(self) -> Disturbance:
        all_0, busy_0, steal_0, own_0 = self._at_start
        all_s, busy_s, steal_s = _machine_s(self._proc)
        own = own_s(self._proc) + own_s(self._proc, KTHREADD)
        whole = max(all_s - all_0, 1 / _TICKS)
        others = max(0.0, (busy_s - busy_0) - (own - own_0)) / whole
        return Disturbance(self._load, min(others, 1.0), (steal_s - steal_0) / whole, self._cores)


def load_average(proc: Path = _PROC) -> float:
    """The load of the last minute."""
    return float((proc / "loadavg").read_text().split()[0])


def _machine_s(proc: Path) -> tuple[float, float, float]:
    """Seconds of all processors since boot: in all, in processes, stolen."""
    words = (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, idle, iowait, irq, softirq, steal = (int(word) / _TICKS for word in words)
    busy = user + nice + system
    return busy + irq + softirq + idle + iowait + steal, busy, steal


def own_s(proc: Path = _PROC, pid: int | None = None) -> float:
    """Processor seconds of a process and its descendants, those that have ended and were waited for included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        parents[int(path.parent.name)] = int(fields[1])
        used[int(path.parent.name)] = sum(map(int, fields[11:15])) / _TICKS
    family = {os.getpid() if pid is None else pid}
    while found := {each for each, parent in parents.items() if parent in family} - family:
        family |= found
    return sum(used.get(each, 0.0) for each in family)


def described() -> dict[str, str]:
    """What a figure depends on: processor, memory, kernel, versions, commit."""
    root = Path(__file__).parents[2]
    info = (_PROC / "cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line), "")
    kib = int((_PROC / "meminfo").read_text().split()[1])
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "processor": model or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{kib / (1 << 20):.0f} GiB",
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "java": _first_line("java", "-version"),
        "commit": _first_line("git", "-C", str(root), "describe", "--always", "--dirty"),
        **versions,
    }


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return "not installed"
    return next(iter((done.stdout or done.stderr).splitlines()), "unknown")


WATCH = Watch() if sys.platform == "linux" else None
"""Since this process imported the module."""
