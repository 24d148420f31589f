"""Each documented installation, alone in an environment of its own, runs what the pages show for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqspark.message import Message
from tests.support.dev import DevCluster
from tests.support.draws import some
from tests.support.installs import Install, build_wheel
from tests.support.pages import ADDRESS, HTTP_ADDRESS, ROOT, Block, blocks

SPARK = ("spark", "jobs", "all")
JOBS = pytest.param("jobs", marks=pytest.mark.delta)
"""Installed only with the Spark that Delta takes."""
WITH_SPARK = [JOBS if extra == "jobs" else extra for extra in SPARK]
Installed = Callable[..., Install]

IMPORTS = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        # The scheduler is the extra jobs', the proxy the extra grpc's.
        is_extra = package == "mqspark_server" and (".scheduler" in each.name or ".proxy" in each.name)
        if not each.name.endswith("__main__") and not is_extra:
            importlib.import_module(each.name)
"""
MAPS = """
from pyspark.sql.functions import pandas_udf
from pyspark.sql.types import IntegerType, StructType
from pyspark.util import PythonEvalType
pandas_udf(lambda batches: batches, StructType().add("a", IntegerType()), PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
"""
"""What ``DataFrame.mapInArrow`` asks an environment for, without a session."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installed:
    made: dict[tuple[str, ...], Install] = {}

    def install(*extras: str) -> Install:
        if extras not in made:
            made[extras] = Install(tmp_path_factory.mktemp("install"), wheel, *extras)
        return made[extras]

    return install


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with DevCluster(tmp_path_factory.mktemp("cluster") / "store", "flushDiskType=ASYNC_FLUSH") as running:
        yield running


def documented() -> set[str]:
    """The extras that pages tell to install, alone or with others."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").glob("*.md")]
    texts = [page.read_text() for page in pages]
    return {
        name
        for text in texts
        for listed in re.findall(r"pip install '(?:\.|mqspark)\[([a-z0-9,]+)\]'", text)
        for name in listed.split(",")
    }


@pytest.mark.parametrize(
    ("extras", "packages"),
    some(
        [
            ((), ["mqspark.client", "mqspark.protocol"]),
            (("server",), ["mqspark_server"]),
            (("server", "testing"), ["mqspark.testing"]),
            (("arrow",), ["mqspark.arrow"]),
            (("grpc",), ["mqspark_server.proxy"]),
            (("spark",), ["pyspark_pymq", "mqspark_jobs"]),
            pytest.param(("jobs",), ["mqspark_server.scheduler"], marks=pytest.mark.delta),
        ],
        2,
        several=True,
    ),
    ids=str,
)
def test_every_module_can_be_imported(
    installed: Installed, tmp_path: Path, extras: tuple[str, ...], packages: list[str]
) -> None:
    done = installed(*extras).run("python", "-c", IMPORTS, *packages, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow("an environment for each; test_every_module_can_be_imported is the fast twin")
@pytest.mark.parametrize("extra", WITH_SPARK)
def test_it_has_what_spark_asks_for_work_queues_and_compaction(
    installed: Installed, tmp_path: Path, extra: str
) -> None:
    done = installed(extra).run("python", "-c", MAPS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    # The same by the command that finds what is missing; Java is this machine's.
    found = installed(extra).run("mqspark", "doctor", "spark", cwd=tmp_path).stdout
    assert re.findall("^FAIL (?!java)(.*)$", found, re.MULTILINE) == [], found


def test_the_doctor_finds_what_is_missing_or_too_new(wheel: Path, tmp_path: Path) -> None:
    poor = Install(tmp_path / "poor", wheel, "spark")
    (packages,) = (tmp_path / "poor").glob("lib/python*/site-packages")
    for link in packages.glob("pandas*"):
        link.unlink()
    found = poor.run("mqspark", "doctor", "spark", cwd=tmp_path)
    assert found.returncode == 1
    assert "FAIL pandas: pandas is not installed: pip install 'mqspark[spark]'\n" in found.stdout
    (packages / "pandas-3.0.1.dist-info").mkdir()
    (packages / "pandas-3.0.1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: pandas\nVersion: 3.0.1\n"
    )
    found = poor.run("mqspark", "doctor", "spark", cwd=tmp_path)
    assert (
        "FAIL pandas: pandas 3.0.1: pandas<3,>=2.2 is needed: pip install 'pandas<3,>=2.2'\n" in found.stdout
    )


def test_every_extra_of_the_pages_is_tried_or_part_of_one_that_is() -> None:
    tried = {"server", "testing", "arrow", *SPARK}
    assert documented() - tried <= {
        *("connect", "delta", "archive", "s3", "tiered", "etcd", "otel", "lineage")
    }
    assert tried <= documented()


@pytest.mark.parametrize(
    "block",
    some(
        [
            each
            for each in blocks("python")
            if not each.needs_spark
            and not any(word in each.text for word in ("mq_c", "mqspark.arrow", "rocketmq import"))
        ],
        3,
    ),
    ids=lambda block: block.name,
)
def test_a_program_of_the_client(
    installed: Installed, cluster: DevCluster, tmp_path: Path, block: Block
) -> None:
    extras = ("server", "testing") if "mqspark.testing" in block.text else ()
    extras += ("schemas",) if "mqspark.schemas" in block.text else ()
    text = block.text.replace(ADDRESS, cluster.nameserver).replace(HTTP_ADDRESS, cluster.http)
    done = installed(*extras).run("python", "-c", text, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.timeout(960)
@pytest.mark.slow("starts a Spark for each extra; that modules and Spark find what they need has a fast test")
@pytest.mark.parametrize("extra", WITH_SPARK)
def test_every_program_with_spark(
    installed: Installed, cluster: DevCluster, tmp_path: Path, extra: str
) -> None:
    orders = cluster.create_topic(f"Orders-{extra}", 1)
    invoices = cluster.create_topic(f"Invoices-{extra}", 1)
    cluster.send(orders, 0, [Message.of(orders, '{"id": 1, "price": 10}')])
    own = {
        ADDRESS: cluster.nameserver,
        "Orders": orders,
        "Invoices": invoices,
        "/tmp/billing": str(tmp_path / "w"),
    }
    programs = []
    for block in [*blocks("python"), *blocks("sql")]:
        if block.needs_spark:
            text = block.text
            for word, mine in own.items():
                text = text.replace(word, mine)
            programs.append((block.name, block.language, text))
    # The queue reads JSON, which other programs do not write.
    programs.sort(key=lambda each: "WorkQueue(" not in each[2])
    (tmp_path / "programs.json").write_text(json.dumps(programs))
    driver = Path(__file__).with_name("installs_driver.py")
    done = installed(extra).run(
        "python", str(driver), str(tmp_path / "programs.json"), cwd=tmp_path, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert re.findall("^ran (.+)$", done.stdout, re.MULTILINE) == [name for name, _, _ in programs]
    assert cluster.max_offsets(invoices) == {0: 1}


@pytest.mark.timeout(960)
@pytest.mark.slow("starts a Spark for each extra")
@pytest.mark.parametrize("extra", [JOBS, "all"])
@pytest.mark.parametrize(
    "block", [each for each in blocks("sh") if each.needs_spark], ids=lambda block: block.name
)
def test_a_job(installed: Installed, tmp_path: Path, extra: str, block: Block) -> None:
    done = installed(extra).run("bash", "-eu", "-c", block.text, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"ok": true' in done.stdout
