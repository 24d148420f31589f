"""The definitions of live tables: what is refused, who may keep a table, and states."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mqspark.errors import ConfigError, MQError
from mqspark_jobs.tables.tabledefs import MAX_TABLES, TableDirectory, TableState, new_definition


def definition(name: str = "orders", **given: Any) -> Any:
    arguments: dict[str, Any] = {
        "topic": "Orders",
        "nameserver": "127.0.0.1:9876",
        "url": f"/tables/{name}",
        "starts": {},
        "is_upsert": False,
        "options": {},
    }
    return new_definition(name, **{**arguments, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "../x"}, "is not 1 to 100 of the characters"),
        ({"name": "x" * 101}, "is not 1 to 100 of the characters"),
        ({"topic": "no topic"}, "topic"),
        ({"nameserver": "nowhere"}, "nowhere"),
        ({"url": ""}, "is no place for a table"),
        ({"url": "/a`b"}, "is no place for a table"),
        ({"catalog_name": "a.b.c.d"}, "is not one to three names"),
        ({"catalog_name": "a`; DROP TABLE b"}, "is not one to three names"),
        ({"options": {"startingOffsets": "latest"}}, "startingOffsets: is not an option of a table"),
        ({"options": {"SecretKey": "x"}}, "SecretKey: is not an option of a table"),
        ({"options": {"tags": "A"}}, "tags: is not an option of a table"),
        ({"options": {"maxBytesPerTriger": "1m"}}, "maxBytesPerTriger"),
        ({"options": {"maxBytesPerTrigger": "much"}}, "maxBytesPerTrigger"),
        ({"options": {"payloadFormat": "arrow"}}, "rows of Arrow messages have no offsets"),
        ({"options": {"payloadFormat": "json"}}, "payloadSchema: required"),
        (
            {"options": {"payloadformat": "JSON", "payloadSchema": "a int", "mode": "FAILFAST"}},
            "mode: is not",
        ),
    ],
)
def test_what_cannot_be_a_table_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    directory = TableDirectory(tmp_path)
    with pytest.raises(MQError, match=said):
        directory.add(definition(**given))
    assert directory.names() == []


def test_tables_share_neither_name_nor_place(tmp_path: Path) -> None:
    directory = TableDirectory(tmp_path / "new")
    directory.add(definition())
    for other, said in (
        (definition(url="/elsewhere"), "there is a table orders already"),
        (definition("a", url="/tables/orders/"), "is the place of the table orders"),
        (definition("b", url="/tables/orders/inside"), "is the place of the table orders"),
        (definition("c", url="/tables"), "is the place of the table orders"),
        (definition("d", url="/tables/orders__rejected"), "is the place of the table orders"),
    ):
        with pytest.raises(ConfigError, match=said):
            directory.add(other)
    directory.add(definition("orders2"))
    assert [each.name for each in directory.all()] == ["orders", "orders2"]


def test_a_directory_holds_a_bounded_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_TABLES == 1_000
    monkeypatch.setattr("mqspark_jobs.tables.tabledefs.MAX_TABLES", 1)
    directory = TableDirectory(tmp_path)
    directory.add(definition())
    with pytest.raises(ConfigError, match="the most"):
        directory.add(definition("another"))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b"[" * 100_000, b'{"name": 3}'])
def test_a_file_that_is_no_definition_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "orders.json").write_bytes(data)
    with pytest.raises(MQError, match=r"orders\.json is not the definition of a table"):
        TableDirectory(tmp_path).load("orders")


def test_a_definition_of_another_name_is_refused(tmp_path: Path) -> None:
    directory = TableDirectory(tmp_path)
    directory.add(definition())
    os.rename(tmp_path / "orders.json", tmp_path / "invoices.json")
    with pytest.raises(MQError, match="is the definition of orders"):
        directory.load("invoices")
    with pytest.raises(ConfigError, match="there is no table orders"):
        directory.load("orders")


def test_one_process_keeps_a_table(tmp_path: Path) -> None:
    directory = TableDirectory(tmp_path)
    directory.add(definition())
    assert not directory.is_running("orders")
    held = directory.lock("orders")
    assert held is not None
    assert directory.lock("orders") is None
    assert directory.is_running("orders")
    os.close(held)
    assert not directory.is_running("orders")


def test_changes_and_states(tmp_path: Path) -> None:
    directory = TableDirectory(tmp_path)
    directory.add(definition())
    paused = directory.change("orders", is_paused=True)
    assert paused.is_paused
    assert directory.load("orders") == paused
    directory.save_state("orders", TableState(3, 10, 1))
    assert directory.state("orders").rows == 10
    (tmp_path / "orders.state").write_bytes(b"\xff")
    assert directory.state("orders") == TableState()
    directory.remove("orders")
    directory.save_state("orders", TableState(4))
    assert directory.state("orders") == TableState(), "a removed table has no state"
