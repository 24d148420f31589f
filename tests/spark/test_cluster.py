"""A standalone cluster of two workers whose own Python has none of the packages, and each way that datasource/README.md
names for a program to have them: an environment that comes along, a zip beside what the hosts have, an environment
that each host has."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from tests.spark.test_submit import STREAM
from tests.support.dev import DevCluster
from tests.support.jvm import SHORT_LIVED
from tests.support.maven import or_skip
from tests.support.packages import pip_packages
from tests.support.processes import free_port, run_to_end, start, stop
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow("a master, two workers and a program of Spark")]

ROOT = Path(__file__).parents[2]
BIN = Path(pyspark.__file__).parent / "bin"
COMMON = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "JAVA_TOOL_OPTIONS": " ".join(SHORT_LIVED),  # of each JVM that comes of these
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # its port is fixed
}
PROGRAM = (
    STREAM
    + """
where = spark.range(2, numPartitions=2).mapInArrow(  # at once, so one on each worker
    lambda batches: (here(batch) for batch in batches), "worker string, package string", barrier=True
)
print(sorted({(row.worker, row.package) for row in where.collect()}))
"""
)
HERE = """
def here(batch):
    import os, pyarrow, pyspark_pymq
    package = os.path.abspath(pyspark_pymq.__file__)
    return pyarrow.RecordBatch.from_pylist([{"worker": os.getcwd(), "package": package}])
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address; it has two workers with one core each."""
    folder = tmp_path_factory.mktemp("standalone")
    environment = {**os.environ, **COMMON, "PYSPARK_PYTHON": ""}
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    spark_class = [str(BIN / "spark-class")]
    with ExitStack() as ends:

        def begin(name: str, *arguments: str) -> Path:
            log = folder / f"{name}.log"
            child = start([*spark_class, *arguments], log, env=environment)
            ends.callback(stop, child, signal.SIGTERM)
            return log

        deploy = "org.apache.spark.deploy"
        ui = ("--webui-port", str(free_port()))
        log = begin("master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), *ui)
        for number in range(2):
            ui = ("--webui-port", str(free_port()))
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"))
            begin(f"worker-{number}", f"{deploy}.worker.Worker", *limits, *ui, "--host", "127.0.0.1", address)
        eventually(lambda: log.read_text().count("Registering worker") == 2, lambda: log.read_text(), 400)
        yield address


def submit(master: str, folder: Path, *arguments: str, **environment: str) -> list[str]:
    done = run_to_end(
        [
            str(BIN / "spark-submit"),
            *("--master", master, "--executor-memory", "512m", "--conf", "spark.driver.host=127.0.0.1"),
            *arguments,
        ],
        env={**os.environ, **COMMON, "PYSPARK_DRIVER_PYTHON": sys.executable, **environment},
        cwd=folder,
        timeout_s=900,
    )
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "\tat " not in line)[
        -6000:
    ]
    return done.stdout.splitlines()


def add_libraries(folder: Path) -> None:
    """What pip would fetch."""
    for name in ("msgspec", "numpy", "numpy.libs", "pyarrow", "pyarrow.libs"):
        source = Path(sysconfig.get_path("purelib"), name)
        if source.is_dir():
            shutil.copytree(source, folder / name, copy_function=os.link, symlinks=True)


def made_environment(folder: Path) -> Path:
    """What ``python -m venv`` and ``pip install`` of the wheel make: a folder beside the wheel."""
    python = folder / "environment"
    venv.create(python, with_pip=False, symlinks=True)
    (site,) = python.glob("lib/python*/site-packages")
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*wheel, "-w", str(folder), str(ROOT)], check=True, timeout=300)
    (built,) = folder.glob("mqspark-*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(built)]
    subprocess.run(pip, check=True, timeout=300)
    add_libraries(site)
    return python


def packed(python: Path) -> Path:
    """What ``venv-pack`` makes of it."""
    packer = pip_packages("venv-pack==0.2.0", "setuptools<81", alone=True)
    archive = python.with_name("environment.tar.gz")  # of a .tar Spark keeps no permissions
    pack = [sys.executable, "-m", "venv_pack", "--prefix", str(python), "--output", str(archive)]
    subprocess.run(
        [*pack, "--quiet", "--compress-level", "1"],
        env={**os.environ, "PYTHONPATH": str(packer)},
        check=True,
        timeout=300,
    )
    return archive


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture
def program(cluster: DevCluster, topic: str, tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(HERE + PROGRAM)
    return [str(tmp_path / "program.py"), cluster.nameserver, topic, str(tmp_path / "files")]


def assert_two_workers_had_it(said: list[str], package: str) -> None:
    """The sink and the stream have run, and both workers have imported ``package``, a pattern, and not this clone."""
    assert said[1] == "True"
    found = ast.literal_eval(said[2])
    assert len(found) == 2, said[2]
    for prefix, path in found:
        assert re.search(package, path), (prefix, path)
        assert str(ROOT) not in path, "a worker has used the packages of this environment"


@pytest.mark.timeout(2400)
def test_a_program_brings_its_environment_along(
    master: str, environment: Path, program: list[str], tmp_path: Path
) -> None:
    archive = or_skip(lambda: packed(environment))
    archives = ["--archives", f"{archive}#environment"]
    # The driver starts its planners with the same relative path.
    said = submit(master, environment.parent, *archives, *program, PYSPARK_PYTHON="./environment/bin/python")
    assert_two_workers_had_it(said, r"/worker-[01]/.*/environment/lib/")


@pytest.mark.timeout(2400)
def test_a_zip_beside_what_the_hosts_have(
    master: str, environment: Path, program: list[str], tmp_path: Path
) -> None:
    """Their Python is the bare interpreter; msgspec, numpy and pyarrow are in a folder that it does not know."""
    (wheel,) = environment.parent.glob("mqspark-*.whl")
    zipped = tmp_path / "mqspark.zip"
    shutil.copy(wheel, zipped)
    libraries = tmp_path / "libraries"
    add_libraries(libraries)
    said = submit(
        master,
        tmp_path,
        *("--py-files", str(zipped), "--conf", f"spark.executorEnv.PYTHONPATH={libraries}"),
        *program,
        PYSPARK_PYTHON=sys._base_executable,  # type: ignore[attr-defined]
        PYTHONPATH=str(libraries),
    )
    assert_two_workers_had_it(said, r"/worker-[01]/.*/mqspark\.zip/")


@pytest.mark.timeout(2400)
def test_an_environment_at_the_same_path_on_each_host(
    master: str, environment: Path, program: list[str], tmp_path: Path
) -> None:
    said = submit(master, tmp_path, *program, PYSPARK_PYTHON=str(environment / "bin" / "python"))
    assert_two_workers_had_it(said, f"^{re.escape(str(environment))}/")
