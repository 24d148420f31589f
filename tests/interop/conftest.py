"""Fixtures: a cluster of either kind, a Java client of either header serialisation; each started once.

They end with the last test of this folder, not with the session: a real broker takes a quarter of a processor while
nobody asks it for anything.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.interop import jars as jar_cache
from tests.interop.driver import JSON_FIRST, Driver, JavaDriver, Program, java_driver
from tests.interop.jars import HERE, Jars
from tests.interop.proxy import fetch_grpc_client, grpc_driver
from tests.interop.rocketmq import EITHER, PATIENT, SOON, either_cluster, rocketmq_cluster
from tests.support.clusters import Cluster, mqspark_cluster
from tests.support.maven import or_skip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEADERS_VARIABLE = "MQSPARK_INTEROP_HEADERS"
"""ROCKETMQ: the Java client has binary headers in every test, by hand."""

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="package")
def jars() -> Jars:
    return or_skip(jar_cache.fetch)


@pytest.fixture(scope="package")
def newest_jars() -> Jars:
    return or_skip(jar_cache.fetch_newest)


@pytest.fixture(scope="package")
def mqspark_dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with mqspark_cluster(tmp_path_factory.mktemp("mqspark")) as running:
        yield running


@pytest.fixture(scope="package")
def rocketmq(newest_jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with rocketmq_cluster(newest_jars, tmp_path_factory.mktemp("rocketmq")) as running:
        yield running


@pytest.fixture(
    params=["mqspark_dev", pytest.param("rocketmq", marks=pytest.mark.slow("a real RocketMQ starts first"))],
    ids=["mqspark", "rocketmq"],
    scope="package",
)
def cluster(request: pytest.FixtureRequest, jars: Jars) -> Cluster:
    """Ours; and the real one, against which the same test must hold or it tests a fancy of its own."""
    running: Cluster = request.getfixturevalue(request.param)
    return running


@pytest.fixture(scope="package", params=JSON_FIRST, ids=["json", "binary"])
def java(
    request: pytest.FixtureRequest, jars: Jars, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaDriver]:
    headers = os.environ.get(HEADERS_VARIABLE, request.param)
    with java_driver(jars, tmp_path_factory.mktemp("driver"), headers) as driver:
        yield driver


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Program], Driver]]:
    """The driver around a client of another language, started for the first test of a module that asks for it."""
    with ExitStack() as running:

        @functools.cache
        def driver(program: Program) -> Driver:
            or_skip(program.build)
            return running.enter_context(program.running(tmp_path_factory.mktemp("driver")))

        yield driver


@pytest.fixture(scope="module")
def grpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The driver around RocketMQ's gRPC client for Java."""
    jars = or_skip(fetch_grpc_client)
    with grpc_driver(jars, tmp_path_factory.mktemp("grpc")) as driver:
        yield driver


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    import pyspark_pymq
    from tests.spark.conftest import SETTINGS as SPARK
    from tests.spark.conftest import stop_session

    running = SparkSession.getActiveSession()
    session = running or SparkSession.builder.config(map=SPARK | pyspark_pymq.tuned_settings()).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    if running is None:  # else it is that of the tests of Spark, in the same process
        stop_session(session)


@pytest.fixture
def name() -> Callable[[str], str]:
    """Topic and group names that no other test of this session has."""
    number = next(_numbers)
    return lambda stem: f"{stem}-{number}"


@pytest.fixture(params=EITHER, scope="package")
def soon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that checks transactions soon."""
    with either_cluster(request, tmp_path_factory.mktemp("soon"), SOON, PATIENT) as running:
        yield running
