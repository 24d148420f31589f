"""A broker on a store with a flipped bit: it serves the rest, and says where the damage is."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.support import web
from tests.support.processes import mqspark_command, process, ready_line
from tests.support.remoting import UPDATE_AND_CREATE_TOPIC, RawConnection, topic_fields
from tests.support.store_tools import QuickFiles, flush, opened, put


def test_health_and_metrics_name_the_place_once_a_read_met_it(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", None, QuickFiles())
    positions = [put(store, "Orders", 0, b"message %d" % number * 9)[1] for number in range(60)]
    flush(store)
    store.close()
    hit = positions[25]
    path = tmp_path / "store" / "commitlog" / f"{hit - hit % 4096:020d}"
    content = bytearray(path.read_bytes())
    content[hit % 4096 + 100] ^= 0x20
    path.write_bytes(content)
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
    command = [*mqspark_command(), "dev", "--store", str(tmp_path / "store"), *ports]
    with process(command, tmp_path / "log", stdout=subprocess.PIPE) as child:
        ready = ready_line(child, tmp_path / "log")
        before = web.get(f"{ready['http']}/health/ready").json()["store"]["damagedOffsets"]
        assert before in ([], [hit])  # the scrub may have been there already
        count = offset = 0
        with RawConnection(ready["broker"], 60) as connection:
            connection.request(UPDATE_AND_CREATE_TOPIC, **topic_fields("Orders"))
            while offset < 60:
                reply = connection.pull("Orders", 0, offset, count=8)
                assert reply.code == 0, (reply.code, reply.remark)
                count += reply.body.count(b"message ") // 9
                offset = int(reply.ext["nextBeginOffset"])
        assert count == 59
        health = web.get(f"{ready['http']}/health/ready")
        deadline = time.monotonic() + 10
        while (
            health.status_code == 200 and time.monotonic() < deadline
        ):  # until housekeeping has looked there
            time.sleep(0.1)
            health = web.get(f"{ready['http']}/health/ready")
        assert health.status_code == 503
        assert f"the first at {hit}, hold no valid record" in health.json()["store"]["damageProblem"]
        assert health.json()["store"]["damagedOffsets"] == [hit]
        lines = web.get(f"{ready['http']}/metrics").text.splitlines()
        (line,) = [line for line in lines if line.startswith("rocketmq_storage_damaged_places{")]
        assert float(line.split()[-1]) == 1
