"""The unmodified RocketMQ jars, fetched once into the cache, and the driver compiled against them."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.maven import cached, copy_dependencies, digest, require_tools, run

HERE = Path(__file__).parent
OLD_CLIENTS = ["4.9.8", "5.3.3"]
COMPILE_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Jars:
    """Where the jars and the compiled driver are, and how to name them on a java command line."""

    jar_folder: Path
    class_folder: Path

    @property
    def classpath(self) -> str:
        return f"{self.class_folder}{os.pathsep}{self.jar_folder}/*"


def fetch() -> Jars:
    """Fetch and compile what is not there yet.

    Raises ToolMissing, and RuntimeError with the tool's output when Maven or javac fails.
    """
    require_tools("java")
    pom = HERE / "pom.xml"
    jar_folder = cached(f"rocketmq-{digest(pom)}", lambda folder: copy_dependencies(pom, folder))
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
        lambda folder: copy_dependencies(pom, folder, f"-Dclient.version={version}"),
    )
    class_folder = cached(
        f"basics-{version}-{digest(pom, source)}", lambda folder: _compile(source, jar_folder, folder)
    )
    return Jars(jar_folder, class_folder)


def dependencies(pom: Path) -> Path:
    """The folder with the jars that a pom names. Raises as ``fetch`` does."""
    require_tools("java")
    return cached(f"{pom.stem}-{digest(pom)}", lambda folder: copy_dependencies(pom, folder))


def driver_with(pom: Path, source: Path) -> Jars:
    """A program of ours compiled against the jars that a pom names. Raises as ``fetch`` does."""
    jar_folder = dependencies(pom)
    name = f"{source.stem.lower()}-{digest(pom, source)}"
    return Jars(jar_folder, cached(name, lambda folder: _compile(source, jar_folder, folder)))


def _compile(source: Path, jar_folder: Path, folder: Path) -> None:
    require_tools("javac")
    command = ["javac", "-Xlint:none", "-nowarn", "-encoding", "UTF-8", "-d", str(folder)]
    run([*command, "-cp", f"{jar_folder}/*", str(source)], COMPILE_TIMEOUT_S)
