"""Fixtures for pytest: ``pytest_plugins = ["mqspark.testing.pytest_plugin"]`` in ``conftest.py``.

Not registered as an entry point: a plugin that every pytest run on the machine imports would cost each of
them numpy.

    mq_broker          one broker for the whole test session: use topics and groups of your own (``mq_topic``)
    mq_fresh_broker    a broker of this test alone
    mq_clock           a FakeClock for what you build yourself
    mq_topic           a topic name that no other test has
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from mqspark.testing import Broker, FakeClock

__all__ = ["mq_broker", "mq_clock", "mq_fresh_broker", "mq_topic"]

_numbers = itertools.count()


@pytest.fixture(scope="session")
def mq_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def mq_fresh_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def mq_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def mq_topic() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"
