"""An application of its own, whose environment says where events of OpenLineage go."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mqspark.message import Message
from tests.support.dev import DevCluster
from tests.support.processes import run_to_end

pytestmark = pytest.mark.spark

HERE = Path(__file__)


@pytest.mark.slow("starts a Spark session; the events and the dead letters have tests without one")
def test_a_stream_of_typed_rows_is_one_edge_and_leaves_dead_letters(
    cluster: DevCluster, tmp_path: Path
) -> None:
    for name in ("Orders", "Totals"):
        cluster.create_topic(name, 1)
    bodies = [b'{"id":1}', b'{"id":"x"}', b'{"id":3}']
    cluster.send("Orders", 0, [Message.of("Orders", body, keys=f"k{at}") for at, body in enumerate(bodies)])
    events = tmp_path / "events"
    where = {"TYPE": "file", "LOG_FILE_PATH": str(events), "APPEND": "true"}
    root = str(HERE.parents[2])
    environment = os.environ | {f"OPENLINEAGE__TRANSPORT__{name}": value for name, value in where.items()}
    done = run_to_end(
        [sys.executable, str(HERE.with_name("lineage_driver.py")), cluster.nameserver, str(tmp_path)],
        env=environment | {"PYTHONPATH": root},
        cwd=tmp_path,
        timeout_s=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert cluster.queue_bodies("Totals") == {0: [b"2", b"6"]}
    dead = cluster.queue_bodies("%DLQ%readers")
    assert [body for each in dead.values() for body in each] == bodies[1:2]
    told: list[dict[str, Any]] = [json.loads(line) for line in events.read_text().splitlines()]
    assert {each["job"]["name"] for each in told} == {"totals"}
    assert len({each["run"]["runId"] for each in told}) == 1
    ends = {
        side: {(each["namespace"], each["name"]) for event in told for each in event[side]}
        for side in ("inputs", "outputs")
    }
    space = f"rocketmq://{cluster.nameserver}"
    assert ends == {"inputs": {(space, "Orders")}, "outputs": {(space, "Totals")}}
