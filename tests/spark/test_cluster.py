"""A standalone cluster of two workers whose own Python has none of the packages: they come with the program, packed as
an environment (--archives), as datasource/README.md says."""

from __future__ import annotations

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
from tests.support.maven import FETCH_TIMEOUT_S, ToolMissing, cached, run
from tests.support.processes import free_port, start, stop
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow("a master, two workers and a program of Spark")]

ROOT = Path(__file__).parents[2]
BIN = Path(pyspark.__file__).parent / "bin"
COMMON = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # its port is fixed
}
PROGRAM = (
    STREAM
    + """
where = spark.range(4, numPartitions=4).mapInArrow(
    lambda batches: (here(batch) for batch in batches), "prefix string, package string"
)
print(sorted({(row.prefix, row.package) for row in where.collect()}))
"""
)
HERE = """
def here(batch):
    import sys, pyarrow, pyspark_pymq
    return pyarrow.RecordBatch.from_pylist([{"prefix": sys.prefix, "package": pyspark_pymq.__file__}])
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
    done = subprocess.run(
        [
            str(BIN / "spark-submit"),
            *("--master", master, "--executor-memory", "512m", "--conf", "spark.driver.host=127.0.0.1"),
            *arguments,
        ],
        env={**os.environ, **COMMON, "PYSPARK_DRIVER_PYTHON": sys.executable, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "\tat " not in line)[
        -6000:
    ]
    return done.stdout.splitlines()


def packed_environment(folder: Path) -> Path:
    """What ``python -m venv``, ``pip install`` of the wheel and ``venv-pack`` make."""

    def install(target: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run([*pip, "--target", str(target), "venv-pack==0.2.0", "setuptools<81"], FETCH_TIMEOUT_S)

    packer = cached("venv-pack-0.2.0", install)
    python = folder / "environment"
    venv.create(python, with_pip=False, symlinks=True)
    (site,) = python.glob("lib/python*/site-packages")
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*wheel, "-w", str(folder), str(ROOT)], check=True, timeout=300)
    (built,) = folder.glob("mqspark-*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(built)]
    subprocess.run(pip, check=True, timeout=300)
    for name in ("msgspec", "numpy", "numpy.libs", "pyarrow", "pyarrow.libs"):  # what pip would fetch
        source = Path(sysconfig.get_path("purelib"), name)
        if source.is_dir():
            shutil.copytree(source, site / name, copy_function=os.link, symlinks=True)
    packed = folder / "environment.tar.gz"  # of a .tar Spark keeps no permissions
    pack = [sys.executable, "-m", "venv_pack", "--prefix", str(python), "--output", str(packed)]
    subprocess.run(
        [*pack, "--quiet", "--compress-level", "1"],
        env={**os.environ, "PYTHONPATH": str(packer)},
        check=True,
        timeout=300,
    )
    return packed


@pytest.mark.timeout(2400)
def test_a_program_brings_its_environment_along(master: str, cluster: DevCluster, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HERE + PROGRAM)
    try:
        packed = packed_environment(tmp_path)
    except (ToolMissing, RuntimeError) as missing:
        pytest.skip(f"venv-pack cannot be had: {missing}")
    topic = cluster.create_topic("Archives", 4)
    program = [str(tmp_path / "program.py"), cluster.nameserver, topic, str(tmp_path / "archives")]
    archives = ["--archives", f"{packed}#environment"]
    said = submit(master, tmp_path, *archives, *program, PYSPARK_PYTHON="./environment/bin/python")
    assert said[1] == "True"
    assert len(re.findall(r"/worker-[01]/[^']*/environment'", said[2])) == 2, said[2]
    assert str(ROOT) not in said[2], "no worker has used the packages of this environment"
