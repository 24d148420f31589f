"""Fixtures: a cluster of either kind, a Java client of either header serialisation; each started once."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.interop import jars as jar_cache
from tests.interop.clusters import Cluster, mqspark_cluster, rocketmq_cluster
from tests.interop.driver import JavaDriver, java_driver
from tests.interop.jars import Jars

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "interop" in item.path.parts:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session")
def jars() -> Jars:
    try:
        return jar_cache.fetch()
    except jar_cache.ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session", params=["mqspark", pytest.param("rocketmq", marks=pytest.mark.slow)])
def cluster(
    request: pytest.FixtureRequest, jars: Jars, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Ours; and the real one, against which the same test must hold or it tests a fancy of its own."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "mqspark":
        with mqspark_cluster(folder) as running:
            yield running
    else:
        with rocketmq_cluster(jars, folder) as running:
            yield running


@pytest.fixture(scope="session", params=["JSON", "ROCKETMQ"], ids=["json", "binary"])
def java(
    request: pytest.FixtureRequest, jars: Jars, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaDriver]:
    with java_driver(jars, tmp_path_factory.mktemp("driver"), request.param) as driver:
        yield driver


@pytest.fixture
def name() -> Callable[[str], str]:
    """Topic and group names that no other test of this session has."""
    number = next(_numbers)
    return lambda stem: f"{stem}-{number}"
