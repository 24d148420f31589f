"""Requests of every code, with names, ids and queue numbers that no two of them share: what they leave behind is in the
tables that are bounded, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqspark.protocol.codes import RequestCode as Code
from tests.security.tables.object_walk import containers_of, globals_of
from tests.support.draws import some
from tests.unit.broker_kit import Bench, namesrv_peer, pull_ext

REQUESTS = 10
"""Requests of each code: a container that half of them are left in has grown."""

NO_LEAK = {
    "Session.out": "answers",
    "Calls._waiting": "MAX_CALLS",
    "mqspark.base.names._known": "_MAX_KNOWN",
}


def fields(bench_ms: int, number: int, topic: str, group: str) -> dict[str, str]:
    """Whatever a header may want, under the names of all of them."""
    n = str(number)
    return {
        **dict.fromkeys(("f", "h", "j", "topicSysFlag", "initMode", "beginTimestamp", "consumerOffset"), "0"),
        **dict.fromkeys(("queueId", "e", "offset", "queueOffset", "commitOffset", "timestamp"), n),
        **dict.fromkeys(("endTimestamp", "commitLogOffset", "tranStateTableOffset"), n),
        **dict.fromkeys(("topic", "b", "originTopic"), topic),
        **dict.fromkeys(("a", "group", "consumerGroup", "producerGroup", "groupName", "srcGroup"), group),
        **dict.fromkeys(("filterGroups", "compareGroup"), group),
        **dict.fromkeys(("clientID", "clientId", "name", "key", "statsKey", "attemptId", "transactionId"), f"x{n}"),
        **dict.fromkeys(("k", "m", "readable", "unitMode"), "false"),
        "destGroup": f"{group}x", "msgId": f"{number:032X}", "maxMsgNums": "32", "sysFlag": "6",
        "suspendTimeoutMillis": "20000", "subscription": f"tag{n}", "subVersion": "0", "isForce": "true",
        "order": "true", "statsName": "TOPIC_PUT_NUMS", "invisibleTime": "60000", "pollTime": "60000",
        "bornTime": str(bench_ms), "expType": "TAG", "exp": f"tag{n}",
        "extraInfo": f"{n} {bench_ms} 60000 0 0 b-a {n} {n}", "maxNum": "1", "c": "TBW102", "d": "4",
        "g": "1700000000000", "i": "", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "attributes": "", "commitOrRollback": "12", "delayLevel": "1",
        "brokerName": "b-a", "namespace": f"x{n}", "value": "v", "recallHandle": "x",
    }  # fmt: skip


def body(number: int, topic: str, group: str) -> bytes:
    document: dict[str, Any] = {
        "clientID": f"c{number}", "clientId": f"c{number}", "consumerGroup": group, "groupName": group,
        "topic": topic, "topicName": topic, "mode": "POP", "strategyName": "AVG", "messageModel": "CLUSTERING",
        "mqSet": [{"topic": topic, "brokerName": "b", "queueId": number}],
        "producerDataSet": [{"groupName": group}],
        "consumerDataSet": [{
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{"topic": topic, "subString": f"tag{number}"}],
        }],
    }  # fmt: skip
    return json.dumps(document).encode()


def sizes(*roots: Any) -> dict[str, int]:
    found = {**containers_of(roots), **globals_of()}
    return {name: len(each) for name, each in found.items() if hasattr(each, "__len__")}


def leaks(before: dict[str, int], after: dict[str, int], held: set[str]) -> dict[str, int]:
    grown = {name: size - before.get(name, 0) for name, size in after.items()}
    return {
        name: by
        for name, by in grown.items()
        if by >= REQUESTS // 2 and name not in held and name not in NO_LEAK
    }


EVERY = pytest.mark.slow("every request; every third is the fast twin")


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=EVERY)])
@pytest.mark.parametrize(
    "is_known", some([False, True], 1), ids=["unknown topics and groups", "unknown queues"]
)
def test_a_broker_keeps_nothing_outside_its_tables(is_known: bool, step: int, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    peer = bench.peer()
    peer.ask(Code.UPDATE_AND_CREATE_TOPIC, {**fields(bench.clock.now_ms(), 1, "T", "CG"), "order": "false"})
    peer.ask(Code.PULL_MESSAGE, pull_ext())
    held = {name for table in bench.broker.tables for name in table.holds} | {"BoundedMap", "BoundedSet"}
    held |= {name for name, each in globals_of().items() if hasattr(each, "bound")}
    number, found = 1_000, {}
    before = sizes(bench.broker, bench.store)
    # What deletes comes last: it would take away what the others ask for.
    codes = sorted(bench.broker.handlers, key=lambda code: ("DELETE" in Code(code).name, code))
    for code in codes[::step]:
        for _ in range(REQUESTS):
            number += 1
            topic, group = ("T", "CG") if is_known else (f"t{number}", f"g{number}")
            peer.give(code, fields(bench.clock.now_ms(), number, topic, group), body(number, topic, group))
            bench.broker.turn()
        while bench.broker.work():
            pass
        bench.broker.turn()
        peer.heard()
        bench.housekeeping()
        after = sizes(bench.broker, bench.store)
        if leaked := leaks(before, after, held):
            found[Code(code).name] = leaked
        before = after
    assert found == {}


def test_a_name_server_keeps_nothing_outside_its_tables() -> None:
    core, clock, peer = namesrv_peer()
    held = {name for table in core.tables for name in table.holds} | {"dict"}
    number, found = 1_000, {}
    before = sizes(core)
    for code in sorted(core.handlers):
        if code == Code.REGISTER_BROKER:  # counted by maxBrokers
            continue
        for _ in range(REQUESTS):
            number += 1
            topic = f"t{number}"
            peer.give(code, fields(clock.now_ms(), number, topic, f"g{number}"), body(number, topic, "g"))
        while core.work():
            pass
        peer.heard()
        after = sizes(core)
        if leaked := leaks(before, after, held):
            found[Code(code).name] = leaked
        before = after
    assert found == {}
