"""The keeper of live tables, without Spark: a table that another process keeps, names on the command line."""

from __future__ import annotations

import os
import signal
import threading
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.errors import ConfigError, MQError
from mqspark_jobs.commandline import check_arguments
from mqspark_jobs.job import ProgressLine
from mqspark_jobs.tables import livetable
from mqspark_jobs.tables.tabledefs import TableDirectory, new_definition
from mqspark_jobs.tables.tablekeeper import TablesOptions

NO_SPARK: Any = None


def a_directory(path: Path) -> TableDirectory:
    directory = TableDirectory(path)
    directory.add(
        new_definition(
            "orders", "Orders", "127.0.0.1:1", str(path / "o"), starts={}, is_upsert=False, options={}
        )
    )
    return directory


def test_a_table_of_another_process_is_said_once_and_looked_at_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = a_directory(tmp_path)
    held = directory.lock("orders")
    assert held is not None
    now_s, tried_s = [0.0], []
    monkeypatch.setattr(livetable, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    lock = directory.lock

    def counting(name: str) -> int | None:
        tried_s.append(now_s[0])
        return lock(name)

    monkeypatch.setattr(directory, "lock", counting)

    def passing(stopped: threading.Event, seconds: float | None = None) -> bool:
        now_s[0] += seconds or 0.0
        if now_s[0] > 30:
            os.kill(os.getpid(), signal.SIGTERM)
        return stopped.is_set()

    monkeypatch.setattr(threading.Event, "wait", passing)
    said = StringIO()
    livetable.run(TablesOptions(directory), NO_SPARK, ProgressLine("tables", said))
    os.close(held)
    assert tried_s == [0, 1, 3, 7, 15, 23]
    assert said.getvalue().count("another process keeps this table") == 1


def test_one_run_over_a_table_of_another_process_fails(tmp_path: Path) -> None:
    directory = a_directory(tmp_path)
    held = directory.lock("orders")
    assert held is not None
    with pytest.raises(MQError, match="orders: another process keeps this table"):
        livetable.run(TablesOptions(directory, once=True), NO_SPARK, ProgressLine("tables", StringIO()))
    os.close(held)


@pytest.mark.parametrize("options", [[], ["orders"], ["--once", "orders", "invoices", "--tables", "d"]])
def test_tables_are_named_by_position(options: list[str]) -> None:
    check_arguments(["tables", *options])
    check_arguments(["table-upkeep", *[each for each in options if each != "--once"]])


def test_one_table_is_compared(tmp_path: Path) -> None:
    check_arguments(["table-verify", "orders", "--tables", "d"])
    for wrong in ([], ["orders", "invoices"], ["--name", "orders"]):
        with pytest.raises(ConfigError, match="options"):
            check_arguments(["table-verify", *wrong])
