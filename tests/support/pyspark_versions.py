"""Other versions of pyspark than the one of the environment, fetched by pip once a machine."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["pyspark_of"]


def pyspark_of(version: str) -> Path | None:
    """A folder to put in front of ``sys.path``; None when it is not in the cache and pip cannot get it."""
    home = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")))
    folder = home / "mqspark-tests" / f"pyspark-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / ".complete"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of one run, and other runs
        if not done.exists():
            # Without its dependencies: py4j and pyarrow are those of the environment.
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
            ]
            command += ["--upgrade", "--target", str(folder), f"pyspark=={version}"]
            if subprocess.run(command, capture_output=True, timeout=900).returncode != 0:
                return None
            done.touch()
    return folder
