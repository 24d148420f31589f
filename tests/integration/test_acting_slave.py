"""A slave of ours that acts as master, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.topics import create_topic
from tests.support.acting import ACTING, MASTER, OTHER, QUICK_CHECKS, SLAVE, deliver_once
from tests.support.clusters import mqspark_broker, mqspark_namesrv


@pytest.mark.slow("messages wait for ten seconds; tests/unit/test_broker_acting.py is the fast twin")
def test_what_waits_is_delivered_once_while_a_slave_acts_as_master(tmp_path: Path) -> None:
    assert ACTING["enableSlaveActingMaster"]
    with (
        mqspark_namesrv(tmp_path / "namesrv", {"supportActingMaster": True}) as namesrv,
        mqspark_broker(tmp_path / "1", namesrv, SLAVE) as slave,
        mqspark_broker(tmp_path / "other", namesrv, {**OTHER, **QUICK_CHECKS}) as other,
    ):
        deliver_once(
            namesrv,
            lambda: mqspark_broker(tmp_path / "0", namesrv, {**MASTER, **QUICK_CHECKS}),
            slave,
            other,
            create_topic,
            10.0,
        )
