"""The second try: a pytest plugin that saves the first failure of each test, and shows it if the test passes alone.

``tests/support/run.py`` runs pytest twice with it: ``--first-try`` for everything, ``--second-try`` for what failed.
"""

from __future__ import annotations

from typing import Any

import pytest

__all__: list[str] = []

KEPT = "mqspark/first_failures"
MOST_LINES = 80
"""Lines shown of each failure, enough to recognise it. The output of the first try has all of it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("second try")
    group.addoption("--first-try", action="store_true", help="keep the failures for --second-try")
    group.addoption("--second-try", action="store_true", help="tests that pass now are flaky")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # the main process gets the reports of all tests
        return
    if config.getoption("--first-try"):
        config.pluginmanager.register(FirstTry(config))
    if config.getoption("--second-try"):
        config.pluginmanager.register(SecondTry(config))


class FirstTry:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failures.setdefault(report.nodeid, report.longreprtext)

    def pytest_sessionfinish(self) -> None:
        self._cache().set(KEPT, self._failures)

    def _cache(self) -> pytest.Cache:
        assert self._config.cache is not None
        return self._config.cache


class SecondTry:
    def __init__(self, config: pytest.Config) -> None:
        assert config.cache is not None
        self._first: dict[str, str] = config.cache.get(KEPT, {})
        self._passed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed[report.nodeid] = self._passed.get(report.nodeid, True) and not report.failed

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        flaky = [test for test, passed in self._passed.items() if passed]
        if not flaky:
            return
        terminalreporter.section("FLAKY: failed, and passed on the second try, alone", yellow=True)
        for test in flaky:
            terminalreporter.section(f"first failure of {test}", sep="_", yellow=True)
            lines = self._first.get(test, "not kept").splitlines()
            terminalreporter.write_line("\n".join(lines[-MOST_LINES:]))
        for test in flaky:
            terminalreporter.write_line(f"FLAKY {test}", yellow=True)
