"""The unmodified RocketMQ jars, fetched once by Maven into a cache outside the repository; the driver.

The cache is ``$MQSPARK_CACHE`` or ``~/.cache/mqspark``. A folder is named after the hash of what it was made
from and holds a marker file once it is complete, so a changed pom.xml or Driver.java makes a new one. A file
lock lets parallel test workers fetch once.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FETCH_TIMEOUT_S = 900
COMPILE_TIMEOUT_S = 120


class ToolMissing(Exception):
    """A tool or a client cannot be had on this machine: the only reason for which an interop test may be skipped."""


@dataclass(frozen=True, slots=True)
class Jars:
    """Where the jars and the compiled driver are, and how to name them on a java command line."""

    jar_folder: Path
    class_folder: Path

    @property
    def classpath(self) -> str:
        return f"{self.class_folder}{os.pathsep}{self.jar_folder}/*"


def cache_folder() -> Path:
    return Path(os.environ.get("MQSPARK_CACHE") or Path.home() / ".cache" / "mqspark")


def require_tools(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise ToolMissing(f"{tool} is not installed; interop tests run unmodified clients with it")


def fetch() -> Jars:
    """Fetch and compile what is not there yet.

    Raises ToolMissing, and RuntimeError with the tool's output when Maven or javac fails.
    """
    require_tools("java")
    pom = HERE / "pom.xml"
    jar_folder = cached(f"rocketmq-{digest(pom)}", lambda folder: _copy_dependencies(pom, folder))
    source = HERE / "java" / "Driver.java"
    class_folder = cached(
        f"driver-{digest(pom, source)}", lambda folder: _compile(source, jar_folder, folder)
    )
    return Jars(jar_folder, class_folder)


def compiled(source: Path, jars: Jars) -> Path:
    """The folder with the classes of another program, compiled against the same jars."""
    name = f"{source.stem.lower()}-{digest(HERE / 'pom.xml', source)}"
    return cached(name, lambda folder: _compile(source, jars.jar_folder, folder))


def fetch_client(version: str) -> Jars:
    """The client of another version, with java/Basics.java compiled against it. Raises as ``fetch`` does."""
    require_tools("java")
    pom, source = HERE / "pom-client.xml", HERE / "java" / "Basics.java"
    jar_folder = cached(
        f"client-{version}-{digest(pom)}",
        lambda folder: _copy_dependencies(pom, folder, f"-Dclient.version={version}"),
    )
    class_folder = cached(
        f"basics-{version}-{digest(pom, source)}", lambda folder: _compile(source, jar_folder, folder)
    )
    return Jars(jar_folder, class_folder)


def dependencies(pom: Path) -> Path:
    """The folder with the jars that a pom names. Raises as ``fetch`` does."""
    require_tools("java")
    return cached(f"{pom.stem}-{digest(pom)}", lambda folder: _copy_dependencies(pom, folder))


def driver_with(pom: Path, source: Path) -> Jars:
    """A program of ours compiled against the jars that a pom names. Raises as ``fetch`` does."""
    jar_folder = dependencies(pom)
    name = f"{source.stem.lower()}-{digest(pom, source)}"
    return Jars(jar_folder, cached(name, lambda folder: _compile(source, jar_folder, folder)))


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


def _copy_dependencies(pom: Path, folder: Path, *options: str) -> None:
    require_tools("mvn")
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    run(
        [
            *("mvn", "-B", "-q", "-f", str(pom), *options),
            *(goal, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"),
        ],
        FETCH_TIMEOUT_S,
    )


def _compile(source: Path, jar_folder: Path, folder: Path) -> None:
    require_tools("javac")
    command = ["javac", "-Xlint:none", "-nowarn", "-encoding", "UTF-8", "-d", str(folder)]
    run([*command, "-cp", f"{jar_folder}/*", str(source)], COMPILE_TIMEOUT_S)


def run(command: list[str], timeout_s: float, *, cwd: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
