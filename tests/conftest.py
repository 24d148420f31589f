"""What holds for every test: how many examples hypothesis draws, the order of the tests, reasons of the slow ones."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from mqspark.base import logs
from tests.support import leftopen
from tests.support.schedule import Scheduling, group_of, is_late, seconds_of

# `make test` draws the same few examples each time, so that whether a change passes is not a matter of luck;
# `make test-all` draws many new ones (--hypothesis-profile=thorough). No deadlines and no check of the time that draws
# take: beside a JVM on few cores any example may wait. Tests take their number of examples from `tests.support.draws`.
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("thorough"), derandomize=True, max_examples=12)
settings.load_profile("same")

GC_THRESHOLDS = (20_000, 10, 50)
"""Large: what a test makes dies young, and a full collection takes a fifth of a second beside thousands of tests."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without garbage collections and freezes them: they live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    for mark in item.iter_markers("night"):
        item.add_marker(pytest.mark.slow(*mark.args))


@pytest.hookimpl(trylast=True)  # after pytest has put together what shares a parameter
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(not mark.args for mark in item.iter_markers("slow")):
            raise pytest.UsageError(f"{item.nodeid}: pytest.mark.slow takes the reason why it is")
    items.sort(key=lambda item: (-seconds_of(group_of(item.nodeid)), is_late(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def _all_log_lines() -> None:
    """A test sees the line that another one has caused in the same minute, too."""
    logs.forget()


@pytest.fixture(autouse=True)
def _nothing_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    if "tmp_path" in request.fixturenames:
        request.getfixturevalue("tmp_path")  # so that it is removed later than what is in it is closed
    with leftopen.closing():
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
