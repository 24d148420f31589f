"""Run benchmarks: ``python -m tests.benchmarks [NAME [options]]``, NAME being that of a bench_NAME.py beside this file.

Without a name all of them run, one after the other, with their defaults. Each module has ``main(arguments)``.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] not in NAMES:
        print(f"no benchmark {arguments[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in arguments[:1] or NAMES:
        print(f"== {name}", flush=True)
        importlib.import_module(f"tests.benchmarks.bench_{name}").main(arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
