"""``make test``, ``test-all`` and ``test-night``: lint and pytest side by side, then a second try of what failed.

Tests use real processes on a shared machine. A test that fails is run once more, alone. If it passes then, it is
reported as flaky at the end, with its first failure; otherwise the run fails. Arguments are passed to pytest.

Delta takes no newer Spark than 4.2, which is not the environment's: tests of Delta are a run of pytest of their own,
beside the others, with that Spark (``pyspark_versions``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO, NamedTuple

from tests.support.maven import ToolMissing
from tests.support.pyspark_versions import environment_of, has_spark_of_delta, spark_of_delta

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
"""The tests start hundreds of processes of the same code; compiling it each time would take half of a start."""
PYTEST = [sys.executable, "-m", "pytest", "-p", "tests.support.again", "-p", "tests.support.preforked"]
TESTS_FAILED, NO_TESTS = 1, 5
"""pytest's exit codes: only when all tests have run and some failed, there is a second try."""
ALONE = ["--last-failed", "--last-failed-no-failures=none", "-n0"]
OF_DELTA = ["tests/spark", "tests/integration/project/test_installs.py"]
"""Where tests marked ``delta`` are."""


class Part(NamedTuple):
    """A run of pytest."""

    arguments: list[str]
    environment: Mapping[str, str]

    def start(self, attempt: str, *more: str, output: IO[str] | None = None) -> subprocess.Popen[str]:
        command = [*PYTEST, attempt, *self.arguments, *more]
        return subprocess.Popen(command, env=self.environment, stdout=output, stderr=output, text=True)


def parts(arguments: Sequence[str]) -> list[Part]:
    """All tests that the arguments choose; those of Delta apart, unless this environment has their Spark, or cannot
    have it, where they skip."""
    try:
        folder = None if has_spark_of_delta() else spark_of_delta()
    except ToolMissing as missing:
        print(missing, flush=True)
        folder = None
    if folder is None:
        return [Part(list(arguments), ENVIRONMENT)]
    place = arguments.index("-m") + 1
    chosen = arguments[place]

    def choosing(more: str, options: Sequence[str]) -> list[str]:
        return [*options[:place], f"({chosen}) and {more}", *options[place + 1 :]]

    own = [*choosing("delta", arguments), *OF_DELTA, "-n0", "-o", "cache_dir=.pytest_cache/delta"]
    return [
        Part(choosing("not delta", arguments), ENVIRONMENT),
        Part(own, {**ENVIRONMENT, **environment_of(folder)}),
    ]


def main(arguments: Sequence[str]) -> int:
    # In the background of a script SIGINT is ignored, also by the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first, *others = parts(arguments)
    with ExitStack() as ends:
        written = [ends.enter_context(tempfile.TemporaryFile("w+")) for _ in (..., *others)]
        lint = subprocess.Popen(
            ["make", "--no-print-directory", "lint"], env=ENVIRONMENT, stdout=written[0], stderr=written[0]
        )
        beside = [
            each.start("--first-try", output=output) for each, output in zip(others, written[1:], strict=True)
        ]
        try:
            codes = [first.start("--first-try").wait()]
        finally:
            codes_beside = [each.wait() for each in beside]
            lint_code = lint.wait()
        for output in reversed(written):
            output.seek(0)
            print(output.read(), end="", flush=True)
        print(f"make lint: {'failed' if lint_code else 'passed'}", flush=True)
    codes += codes_beside
    for number, each in enumerate((first, *others)):
        if codes[number] == TESTS_FAILED:
            print("Tests failed; a second try of each, alone:", flush=True)
            again = each.start("--second-try", *ALONE).wait()
            # No test had failed: then it is pytest that did, as for warnings at its end.
            codes[number] = TESTS_FAILED if again == NO_TESTS else again
    return next((code for code in codes if code not in (0, NO_TESTS)), lint_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
