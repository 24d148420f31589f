"""The command line of the fuzzer. Exit code 1 when there is a finding."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.security.fuzz.cases import Chance
from tests.security.fuzz.kinds import Target
from tests.security.fuzz.targets import TARGETS

MAX_FINDINGS = 20


def fuzz(
    target: Target,
    seed: int,
    seconds: float,
    findings: Path | None = None,
    known: Mapping[str, bytes] = MappingProxyType({}),
) -> list[str]:
    """Run the ``known`` cases, which have names, and then new ones for a time; what the target did wrong. Files of new
    cases go to ``findings``."""
    chance = Chance(seed)
    count = 0
    with target.open():
        stories = [f"{name}: {story}" for name, case in known.items() if (story := target.run(case))]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(stories) < MAX_FINDINGS:
            case = target.make(chance)
            story = target.run(case)
            count += 1
            if story is not None:
                name = f"{target.name}-{hashlib.sha256(case).hexdigest()[:12]}"
                stories.append(f"{name}: {story}")
                if findings is not None:
                    findings.mkdir(parents=True, exist_ok=True)
                    (findings / f"{name}.case").write_bytes(case)
                    (findings / f"{name}.txt").write_text(story)
        story = target.verdict()
        if story is not None:
            stories.append(f"{target.name}: {story}")
        print(
            f"{target.name}: seed {seed}, {count} cases in {seconds:.0f} s, {len(stories)} findings; "
            f"{target.measures()}",
            flush=True,
        )
    return stories


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all when none is named"
    )
    parser.add_argument("--seconds", type=float, default=600, help="for each target")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--findings", type=Path, default=None, help="a directory for the cases that found something"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}")
    seed = arguments.seed if arguments.seed is not None else time.time_ns() & 0xFFFFFFFF
    stories = []
    for name in arguments.targets or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            stories += fuzz(TARGETS[name](Path(folder)), seed, arguments.seconds, arguments.findings)
    for story in stories:
        print(story)
    return 1 if stories else 0


if __name__ == "__main__":
    sys.exit(main())
