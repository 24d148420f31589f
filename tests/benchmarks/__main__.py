"""Run benchmarks: ``python -m tests.benchmarks [NAME [options]]``, NAME being that of a bench_NAME.py beside this file.

Without a name all of them run, one after the other, with their defaults, each in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] not in NAMES:
        print(f"no benchmark {arguments[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    worst = 0
    for name in arguments[:1] or NAMES:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}", *arguments[1:]]
        worst = max(worst, subprocess.run(command).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
