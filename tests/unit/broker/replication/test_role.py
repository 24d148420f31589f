"""What a broker is in its set, by its settings and its term."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.config import BrokerRole
from mqspark.broker.replication.term import Term
from tests.unit.broker_kit import Bench

SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
ACTING: dict[str, Any] = {"enable_slave_acting_master": True}
SKIPPING: dict[str, Any] = {"skip_pre_online": True}
PARTS = ("follower", "metadata", "epochs", "pre_online", "acting", "replicas")


def parts_of(bench: Bench) -> str:
    return " ".join(name for name in PARTS if getattr(bench.broker.role, name) is not None)


@pytest.mark.parametrize(
    ("settings", "master_id", "parts"),
    [
        ({}, None, "replicas"),
        (SLAVE, None, "follower metadata replicas"),
        (ACTING, None, "pre_online acting replicas"),
        (ACTING | SKIPPING, None, "acting replicas"),
        (ACTING | SLAVE, None, "follower metadata acting replicas"),
        ({}, 1, "epochs replicas"),
        (SLAVE, 2, "follower metadata epochs replicas"),
    ],
    ids=["master", "slave", "comes back", "at once", "may act", "elected", "follows the elected"],
)
def test_the_parts_of_a_role(
    tmp_path: Path, settings: dict[str, Any], master_id: int | None, parts: str
) -> None:
    """``master_id``: of the term; None without controllers."""
    bench = Bench(tmp_path, start=False, **settings)
    if master_id is not None:
        bench.term = Term(bench.clock, 1, 8_000)
        bench.term.begin(1, master_id, "m:1")
    bench.open()
    assert parts_of(bench) == parts


def test_a_master_is_back_once_it_goes_online(tmp_path: Path) -> None:
    bench = Bench(tmp_path, **ACTING)
    assert parts_of(bench) == "pre_online acting replicas"
    bench.broker.go_online()
    assert parts_of(bench) == "acting replicas"
