"""Timer messages that are taken back, and those in the files of a real broker."""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mqspark.protocol.codes import ResponseCode
from tests.unit.broker_kit import SEND, Bench, Peer, send_ext
from tests.unit.timer_kit import DAY_MS, WHEEL, bodies, recall, send

STORE = Path(__file__).parents[3] / "golden" / "store"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, recall_message_enable=True)


@pytest.mark.parametrize("with_topic", [False, True])
def test_a_recalled_message_is_not_delivered(bench: Bench, with_topic: bool) -> None:
    bench.store_config.append_topic_for_timer_delete_key = with_topic
    handle = send(bench, b"gone", delay_ms=5_300, more="UNIQ_KEY\x01U\x02").ext["recallHandle"]
    send(bench, b"stays", delay_ms=5_300)
    bench.run_for(2_000)
    answer = recall(bench.peer(), handle)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert answer.ext == {"msgId": "U", "MSG_REGION": "DefaultRegion"}
    deletion = bench.records(WHEEL)[-1]
    assert (deletion.body, deletion.properties["TAGS"]) == (b"0", "_RECALL_TAG_")
    assert deletion.properties["TIMER_DEL_UNIQKEY"] == ("T+U" if with_topic else "U")
    bench.run_for(100)
    assert bench.broker.timers.metrics.counts().get("T", 0) == 1
    bench.run_for(6_000)
    assert bodies(bench) == [b"stays"]
    assert bench.broker.timers.metrics.counts().get("T", 0) == 0


def test_a_recall_of_nothing_changes_nothing(bench: Bench) -> None:
    handle = base64.urlsafe_b64encode(b"v1 T b-a 1700000005301 nobody").decode()
    send(bench, b"stays", delay_ms=5_300)
    assert recall(bench.peer(), handle).code == 0
    bench.run_for(7_000)
    assert bodies(bench) == [b"stays"]
    assert bench.broker.timers.metrics.counts().get("T", 0) == 0


def test_which_handles_are_refused(bench: Bench, peer: Peer) -> None:
    good = send(bench, delay_ms=5_300).ext["recallHandle"]

    def made(text: str) -> str:
        return base64.urlsafe_b64encode(text.encode()).decode()

    for handle in ("", "%%%", made("v2 T b-a 1 U"), made("v1 T b-a 1"), "a", "+/"):
        answer = recall(peer, handle)
        assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
    for handle, words in (
        (made("v1 Other b-a 1700000005301 U"), "topic not match"),
        (made("v1 T other 1700000005301 U"), "broker service not available"),
        (made("v1 T b-a 1700000000000 U"), "timestamp invalid"),
        (made(f"v1 T b-a {1_700_000_000_000 + 3 * DAY_MS} U"), "timestamp invalid"),
        (made("v1 T b-a soon U"), "timestamp invalid"),
    ):
        answer = recall(peer, handle)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert answer.remark == f"recall failed, {words}"
        assert answer.ext == {"MSG_REGION": "DefaultRegion"}
    assert recall(peer, good, "Nope").code == ResponseCode.TOPIC_NOT_EXIST
    bench.config.recall_message_enable = False
    assert recall(peer, good).code == ResponseCode.NO_PERMISSION


# --- files of a real broker ---


def unpack(name: str, directory: Path) -> Path:
    with tarfile.open(STORE / f"{name}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "store"


def manifest(name: str) -> list[dict[str, Any]]:
    with gzip.open(STORE / f"{name}.manifest.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", ["clean", "kill9"])
def test_a_directory_of_a_real_broker_goes_on(tmp_path: Path, name: str) -> None:
    """Its timers of 1 h and 24 h and its delay levels 16 and 18 are delivered, once and not before."""
    root = unpack(name, tmp_path)
    waiting = {record["keys"]: record for record in manifest(name) if record["topic"] == WHEEL}
    times = [int(record["properties"]["TIMER_OUT_MS"]) for record in waiting.values()]
    bench = Bench(root, start=False, broker_name="broker-g", broker_cluster_name="GoldenCluster")
    bench.clock.wall_ms = min(record["storeTimestamp"] for record in waiting.values()) + 120_000
    bench.open()
    before = {record.keys for queue_id in (0, 1) for record in bench.records("GsDelay", queue_id)}
    assert {"timer-0", "timer-1"} <= before
    bench.run_for(0)
    while bench.clock.wall_ms < max(times) + 3_000:
        bench.clock.advance(60_000)
        bench.run_for(0)
    records = [record for queue_id in (0, 1) for record in bench.records("GsDelay", queue_id)]
    keys = [record.keys for record in records]
    assert sorted(keys) == [
        *(f"delay-{number}" for number in range(6)),
        *(f"timer-{number}" for number in range(4)),
    ]
    for record in records:
        if record.keys in ("timer-2", "timer-3"):
            out_ms = int(waiting[record.keys]["properties"]["TIMER_OUT_MS"])
            assert out_ms + 1_000 <= record.store_timestamp_ms <= out_ms + 62_000
            theirs = waiting[record.keys]["properties"]
            added = {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
            assert {name: value for name, value in record.properties.items() if name not in added} == theirs


def test_the_delivered_record_is_that_of_a_real_broker(tmp_path: Path) -> None:
    theirs = {record["keys"]: record for record in manifest("kill9") if record["topic"] == "GsDelay"}[
        "timer-0"
    ]
    bench = Bench(tmp_path, broker_cluster_name="GoldenCluster")
    bench.clock.wall_ms = 1_795_250_168_809
    sent = "".join(
        f"{name}\x01{theirs['properties'][name]}\x02"
        for name in ("KEYS", "TAGS", "TIMER_DELAY_MS", "UNIQ_KEY", "WAIT")
    )
    bench.peer().ask(SEND, send_ext("GsDelay", 0, sent, g=str(theirs["bornTimestamp"])), b"x")
    bench.run_for(3_000)
    (record,) = bench.records("GsDelay")
    expected = theirs["properties"] | {"TIMER_DEQUEUE_MS": record.properties["TIMER_DEQUEUE_MS"]}
    assert record.properties == expected


def test_rates_of_the_wheel(bench: Bench) -> None:
    bench.run_for(10_000, step_ms=1_000)
    for _ in range(20):
        send(bench, delay_ms=12_000)
    bench.run_for(10_000, step_ms=1_000)
    table = bench.broker.runtime_info()
    assert float(table["timerEnqueueTps"]) == pytest.approx(2.0)
    assert table["timerDequeueTps"] == "0.0"
    bench.run_for(10_000, step_ms=1_000)
    table = bench.broker.runtime_info()
    assert table["timerEnqueueTps"] == "0.0"
    assert float(table["timerDequeueTps"]) == pytest.approx(2.0)
