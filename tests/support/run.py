"""``make test``, ``test-all`` and ``test-night``: lint and pytest side by side, then a second try of what failed.

Tests use real processes on a shared machine. A test that fails is run once more, alone. If it passes then, it is
reported as flaky at the end, with its first failure; otherwise the run fails. Arguments are passed to pytest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

__all__ = ["main"]

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
"""The tests start hundreds of processes of the same code; compiling it each time would take half of a start."""
PYTEST = [sys.executable, "-m", "pytest", "-p", "tests.support.again", "-p", "tests.support.preforked"]
TESTS_FAILED = 1
"""pytest's exit code when all tests have run and some failed: only then is there a second try."""
ALONE = ["--last-failed", "--last-failed-no-failures=none", "-n0"]


def main(arguments: Sequence[str]) -> int:
    # In the background of a script SIGINT is ignored, also by the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryFile("w+") as output:
        lint = subprocess.Popen(
            ["make", "--no-print-directory", "lint"], env=ENVIRONMENT, stdout=output, stderr=output
        )
        try:
            code = subprocess.run([*PYTEST, "--first-try", *arguments], env=ENVIRONMENT).returncode
        finally:
            lint_code = lint.wait()
        output.seek(0)
        print(output.read(), end="", flush=True)
        print(f"make lint: {'failed' if lint_code else 'passed'}", flush=True)
    if code == TESTS_FAILED:
        print("Tests failed; a second try of each, alone:", flush=True)
        code = subprocess.run([*PYTEST, "--second-try", *arguments, *ALONE], env=ENVIRONMENT).returncode
    return code or lint_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
