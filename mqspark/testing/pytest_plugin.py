"""Fixtures for pytest, available wherever mqspark is installed: pytest finds this module by its entry point.

    mq_broker     a broker, and its name server, of this test alone
    mq_cluster    two brokers and a name server: ``kill``, ``restart``, ``add_broker``
    mq_client     makes producers and consumers for them, and stops them at the end
    mq_clock      the time of the brokers: stands still until ``mq_clock.advance(ms)`` moves it
    mq_topic      a topic name that no other test has; the first send makes the topic

A test that asks for ``mq_clock`` moves the time of its ``mq_broker`` or ``mq_cluster``, and of what its ``mq_client``
makes; without it they go by the real time. ``mq_client`` is for the ``mq_cluster`` if the test has one, else for the
``mq_broker``; its clients block, and asyncio tests use ``async with mqspark.aio.Producer(mq_broker.namesrv,
group=...)``. What ``Broker`` and ``Cluster`` take as keywords can be given by marks::

    @pytest.mark.mq_cluster(brokers=3, settings={"flushDiskType": "SYNC_FLUSH"})
    def test_three(mq_cluster): ...

Importing this module imports nothing else of mqspark, because every pytest run on the machine imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mqspark.testing import Broker, Clients, Cluster, FakeClock

__all__ = ["mq_broker", "mq_client", "mq_clock", "mq_cluster", "mq_topic"]

DEFAULT_BROKERS = 2


def pytest_configure(config: pytest.Config) -> None:
    for kind, made in (("mq_broker", "Broker"), ("mq_cluster", "Cluster")):
        config.addinivalue_line("markers", f"{kind}(**keywords): what mqspark.testing.{made} is made with")


def _options(request: pytest.FixtureRequest, kind: str) -> dict[str, Any]:
    """The keywords of the marks, the nearest one first, and the test's clock."""
    options: dict[str, Any] = {}
    for mark in request.node.iter_markers(kind):
        if mark.args:
            raise pytest.UsageError(f"@pytest.mark.{kind} takes keywords only, not {mark.args}")
        options = {**mark.kwargs, **options}
    if "mq_clock" in request.fixturenames:
        options.setdefault("clock", request.getfixturevalue("mq_clock"))
    return options


@pytest.fixture
def mq_clock() -> FakeClock:
    """The time of the brokers (``mqspark.testing.FakeClock``): it stands still until ``mq_clock.advance(ms)`` moves it.

    Begins with the present, so that a client's ``time.time() + 60`` means what it should."""
    from mqspark.base.clock import wall_ms
    from mqspark.testing import FakeClock

    return FakeClock(now_ms=wall_ms())


@pytest.fixture
def mq_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker and its name server, of this test alone (``mqspark.testing.Broker``): ``mq_broker.namesrv`` is the
    address for clients."""
    from mqspark.testing import Broker

    with Broker(**_options(request, "mq_broker")) as broker:
        yield broker


@pytest.fixture
def mq_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two brokers and a name server (``mqspark.testing.Cluster``), more with
    ``@pytest.mark.mq_cluster(brokers=3)``."""
    from mqspark.testing import Cluster

    with Cluster(**{"brokers": DEFAULT_BROKERS, **_options(request, "mq_cluster")}) as cluster:
        yield cluster


@pytest.fixture
def mq_client(request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Makes started clients of the test's ``mq_cluster``, or else of its ``mq_broker``, and stops them at the end
    (``mqspark.testing.Clients``)."""
    from mqspark.testing import Clients

    where = "mq_cluster" if "mq_cluster" in request.fixturenames else "mq_broker"
    clock = request.getfixturevalue("mq_clock").running if "mq_clock" in request.fixturenames else None
    with Clients(request.getfixturevalue(where).namesrv, clock=clock) as clients:
        yield clients


@pytest.fixture
def mq_topic() -> str:
    """A topic name that no other test has; the first send makes the topic."""
    from mqspark.testing.clients import new_name

    return new_name("test")
