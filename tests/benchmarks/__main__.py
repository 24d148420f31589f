"""Run benchmarks and compare their reports.

    python -m tests.benchmarks [--report PATH] [--although-loaded]       all, one after the other, with their defaults
    python -m tests.benchmarks NAME [options of bench_NAME.py]           one; --help shows its options
    python -m tests.benchmarks check A.json B.json [--although-loaded]   what changed from A to B; exit code 1: worse

Each benchmark runs in a process of its own. A run writes PATH.json and PATH.html (build/bench by default; a single
benchmark writes them only with --report). On a loaded machine ratios are not printed unless --although-loaded is given.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks import machine, page, report

NAMES = sorted(
    path.stem.removeprefix("bench_").replace("_", "-") for path in Path(__file__).parent.glob("bench_*.py")
)
DEFAULT_REPORT = Path("build/bench")


def run(name: str, options: list[str], environment: dict[str, str]) -> report.Benchmark:
    """Run one benchmark and collect what it recorded."""
    print(f"== {name}", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-record-") as folder:
        record = Path(folder) / "record"
        watch, began = machine.Watch(), time.monotonic()
        module = f"tests.benchmarks.bench_{name.replace('-', '_')}"
        command = [sys.executable, "-m", module, *options]
        code = subprocess.run(
            command, env={**environment, report.RECORD: str(record)}, check=False
        ).returncode
        found = watch.disturbance()
        figures, peers = report.recorded(record)
    if found.reason:
        print(f"   {name}: no results, because {found.reason}", flush=True)
    return report.Benchmark(
        name=name, arguments=options, seconds=time.monotonic() - began, exit_code=code,
        load_before=found.load_before, others=found.others, steal=found.steal, loaded=found.reason,
        figures=figures, peers=peers,
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["check"]:
        parser = argparse.ArgumentParser(prog="python -m tests.benchmarks check")
        parser.add_argument("first", type=Path)
        parser.add_argument("second", type=Path)
        parser.add_argument("--although-loaded", action="store_true")
        asked = parser.parse_args(arguments[1:])
        return report.check(asked.first, asked.second, although_loaded=asked.although_loaded)
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, add_help=not arguments or arguments[0] not in NAMES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("name", nargs="?", help=", ".join(NAMES))
    parser.add_argument("--report", type=Path, help="write PATH.json and PATH.html")
    parser.add_argument(
        "--although-loaded", action="store_true", help="print ratios on a loaded machine, too"
    )
    asked, options = parser.parse_known_args(arguments)
    if asked.name is not None and asked.name not in NAMES:
        parser.error(f"no benchmark {asked.name!r}; there are: {', '.join(NAMES)}")
    if asked.name is None and options:
        parser.error(f"unknown: {' '.join(options)}")
    environment = {**os.environ, machine.LOAD_BEFORE: str(machine.load_average())}
    os.environ[machine.LOAD_BEFORE] = environment[machine.LOAD_BEFORE]
    if asked.although_loaded:
        environment[machine.ALTHOUGH_LOADED] = "1"
    made = report.Report(
        begun=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=machine.described(),
        benchmarks=[],
    )
    path = asked.report or (DEFAULT_REPORT if asked.name is None else None)
    for name in [asked.name] if asked.name else NAMES:
        made.benchmarks.append(run(name, options, environment))
        if path is not None:  # after each, so that a run that is stopped leaves a report
            path.parent.mkdir(parents=True, exist_ok=True)
            made.write(path.with_suffix(".json"))
            path.with_suffix(".html").write_text(page.html(made))
    if path is not None:
        print(f"report: {path.with_suffix('.json')} and {path.with_suffix('.html')}")
    return max(each.exit_code for each in made.benchmarks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
