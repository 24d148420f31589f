"""The unmodified RocketMQ jars, fetched once into the cache, and the driver compiled against them."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.jvm import class_archive
from tests.support.maven import cache_folder, cached, copy_dependencies, digest, require_tools, run

HERE = Path(__file__).parent
OLD_CLIENTS = ["4.9.8", "5.3.3"]
OLD_SERVER = "5.3.3"
COMPILE_TIMEOUT_S = 120
PROGRAM = "program.jar"


@dataclass(frozen=True, slots=True)
class Jars:
    """Where the jars and the compiled driver are, and how to name them on a java command line."""

    jar_folder: Path
    program: Path
    """A jar: there are no archives of classes that come from folders."""

    @property
    def classpath(self) -> str:
        return f"{self.program}{os.pathsep}{self.jar_folder}/*"

    def class_archive(self, main_class: str) -> Path:
        """The archive of the JVMs that run this class: see ``tests.support.jvm``."""
        name = main_class.rpartition(".")[2].lower()
        return class_archive(cache_folder() / "classes", name, self.classpath, main_class)


def fetch() -> Jars:
    """Fetch and compile what is not there yet.

    Raises ToolMissing, and RuntimeError with the tool's output when Maven or javac fails.
    """
    require_tools("java")
    pom = HERE / "pom.xml"
    jar_folder = cached(f"rocketmq-{digest(pom)}", lambda folder: copy_dependencies(pom, folder))
    source = HERE / "java" / "Driver.java"
    return Jars(jar_folder, _program(f"driver-{digest(pom, source)}", source, jar_folder))


def compiled(source: Path, jars: Jars) -> Path:
    """The jar of another program, compiled against the same jars."""
    return _program(f"{source.stem.lower()}-{digest(HERE / 'pom.xml', source)}", source, jars.jar_folder)


def fetch_client(version: str) -> Jars:
    """The client of another version, with java/Basics.java compiled against it. Raises as ``fetch`` does."""
    require_tools("java")
    pom, source = HERE / "pom-client.xml", HERE / "java" / "Basics.java"
    jar_folder = cached(
        f"client-{version}-{digest(pom)}",
        lambda folder: copy_dependencies(pom, folder, f"-Dclient.version={version}"),
    )
    return Jars(jar_folder, _program(f"basics-{version}-{digest(pom, source)}", source, jar_folder))


def fetch_server(version: str) -> Jars:
    """The broker of another version. Raises as ``fetch`` does."""
    pom = HERE / "pom-server.xml"
    jar_folder = cached(
        f"server-{version}-{digest(pom)}",
        lambda folder: copy_dependencies(pom, folder, f"-Dserver.version={version}"),
    )
    return Jars(jar_folder, fetch_client(version).program)


def fetch_newest() -> Jars:
    """The newest broker and controller, of a version whose other parts there is no release of on Maven Central. Raises
    as ``fetch`` does."""
    return Jars(dependencies(HERE / "pom-newest.xml"), fetch().program)


def dependencies(pom: Path) -> Path:
    """The folder with the jars that a pom names. Raises as ``fetch`` does."""
    require_tools("java")
    return cached(f"{pom.stem}-{digest(pom)}", lambda folder: copy_dependencies(pom, folder))


def driver_with(pom: Path, source: Path) -> Jars:
    """A program of ours compiled against the jars that a pom names. Raises as ``fetch`` does."""
    jar_folder = dependencies(pom)
    return Jars(jar_folder, _program(f"{source.stem.lower()}-{digest(pom, source)}", source, jar_folder))


def _program(name: str, source: Path, jar_folder: Path) -> Path:
    """The jar of a program compiled against the jars of a folder."""

    def make(folder: Path) -> None:
        require_tools("javac", "jar")
        with tempfile.TemporaryDirectory() as classes:
            command = ["javac", "-Xlint:none", "-nowarn", "-encoding", "UTF-8", "-d", classes]
            run([*command, "-cp", f"{jar_folder}/*", str(source)], COMPILE_TIMEOUT_S)
            run(["jar", "--create", "--file", str(folder / PROGRAM), "-C", classes, "."], COMPILE_TIMEOUT_S)

    return cached(f"{name}-jar", make) / PROGRAM
