"""The cache outside the repository for files that tests fetch or compile, and Maven, which fetches jars into it.

The cache is ``$MQSPARK_CACHE`` or ``~/.cache/mqspark``. A folder is named after the hash of its sources and has a
marker file once it is complete, so a changed pom.xml or Driver.java leads to a new folder. A file lock lets parallel
test workers fetch only once.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

FETCH_TIMEOUT_S = 900


class ToolMissing(Exception):
    """A tool or a client is not available on this machine: the only reason for which a test may be skipped."""


def cache_folder() -> Path:
    return Path(os.environ.get("MQSPARK_CACHE") or Path.home() / ".cache" / "mqspark")


def require_tools(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise ToolMissing(f"{tool} is not installed; tests run unmodified clients with it")


def or_skip(fetch: Callable[[], T]) -> T:
    """What it returns; a test that asks for what cannot be had on this machine is skipped, with the reason."""
    try:
        return fetch()
    except ToolMissing as missing:
        pytest.skip(str(missing))


def digest(*sources: Path) -> str:
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache; ``make`` fills it once."""
    root = cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    folder = root / name
    marker = folder / ".complete"
    with _locked(root / f"{name}.lock"):
        if not marker.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            marker.touch()
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def copy_dependencies(pom: Path, folder: Path, *options: str) -> None:
    require_tools("mvn")
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    run(
        [
            *("mvn", "-B", "-q", "-f", str(pom), *options),
            *(goal, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"),
        ],
        FETCH_TIMEOUT_S,
    )


def obtain(what: str, command: list[str], *, cwd: Path | None = None) -> None:
    """Run what fetches packages. Raises ToolMissing when it fails."""
    try:
        run(command, FETCH_TIMEOUT_S, cwd=cwd)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        raise ToolMissing(f"{what} cannot be had: {error}") from error


def run(command: list[str], timeout_s: float, *, cwd: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
