"""Replicas whose directories come from a backup: one member of a set that has gone on, and a whole set."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark import Message, Producer
from mqspark.errors import MQError
from tests.support import commands
from tests.support.remoting import ask
from tests.support.replicaset import CLUSTER, ELECT_MASTER, NAME, ReplicaSet
from tests.support.waiting import eventually

UPDATE_CONTROLLER_CONFIG = 1009


def send(replicas: ReplicaSet, numbers: range) -> None:
    """Each is acknowledged; what is not is sent again."""
    with Producer(replicas.namesrv, group="p") as producer:
        for number in numbers:
            message = Message("T", b"message %d" % number)

            def is_acknowledged(message: Message = message) -> bool:
                try:
                    producer.send(message)
                except MQError:
                    return False
                return True

            eventually(is_acknowledged, f"message {number} to be acknowledged")


def backed_up(store: Path, place: Path) -> None:
    done = commands.mqspark("store", "backup", str(store), "--to", str(place))
    assert done.code == 0, done.err


def restored(place: Path, store: Path, *options: str) -> None:
    """In place of what is there, but for its number."""
    identity = (store / "brokerIdentity").read_bytes()
    shutil.rmtree(store)
    if options:
        store.mkdir()
        (store / "brokerIdentity").write_bytes(identity)
    done = commands.mqspark("store", "restore", str(place), "--to", str(store), *options)
    assert done.code == 0, done.err
    assert (store / "brokerIdentity").read_bytes() == identity


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[ReplicaSet]:
    with ReplicaSet(tmp_path, 3, autoCreateTopicEnable=True) as found:
        yield found


def follower(replicas: ReplicaSet) -> int:
    return min(replicas.ids - {replicas.master()})


@pytest.mark.slow("starts a set of three; test_replica_damage has the fast twins")
@pytest.mark.parametrize("options", [["--replica"], []], ids=["replica", "whole"])
def test_a_restored_member_takes_nothing_from_the_others(
    replicas: ReplicaSet, tmp_path: Path, options: list[str]
) -> None:
    send(replicas, range(40))
    number = follower(replicas)
    place = tmp_path / "backup"
    backed_up(replicas.store(number), place)
    send(replicas, range(40, 80))
    replicas.until_confirmed()
    folders = {each: replicas.kill(each) for each in sorted(replicas.ids)}
    restored(place, folders[number] / "store", *options)
    replicas.restart(number, folders[number])  # it comes first
    eventually(lambda: _refuses(replicas, number), lambda: replicas.state())
    for each in folders.keys() - {number}:
        replicas.restart(each, folders[each])
    replicas.until_in_sync()
    send(replicas, range(80, 90))
    eventually(lambda: len(set(replicas.logs())) == 1, "equal logs")
    assert _numbers(replicas) == set(range(90))


def _refuses(replicas: ReplicaSet, number: int) -> bool:
    """Whether the controller knows the broker, and does not let it lead."""
    words = {"clusterName": CLUSTER, "brokerName": NAME}
    answer = ask(replicas.controller, ELECT_MASTER, brokerId=number, designateElect=True, **words)
    assert answer.code != 0, "it lacks messages"
    assert replicas.master() is None or replicas.master() != number or not replicas.in_sync()
    return "would lose" in (answer.remark or "")


@pytest.mark.slow("starts a set of three; test_replica_damage has the fast twins")
def test_a_set_goes_back_to_a_backup(replicas: ReplicaSet, tmp_path: Path) -> None:
    send(replicas, range(40))
    number = follower(replicas)
    place = tmp_path / "backup"
    backed_up(replicas.store(number), place)
    send(replicas, range(40, 60))
    replicas.until_confirmed()
    folders = {each: replicas.kill(each) for each in sorted(replicas.ids)}
    for each, folder in folders.items():
        restored(place, folder / "store", *([] if each == number else ["--replica"]))
    replicas.restart(number, folders[number])
    eventually(lambda: _refuses(replicas, number), lambda: replicas.state())
    words = {"clusterName": CLUSTER, "brokerName": NAME}
    assert ask(replicas.controller, UPDATE_CONTROLLER_CONFIG, b"enableElectUncleanMaster=true").code == 0
    assert ask(replicas.controller, ELECT_MASTER, brokerId=number, designateElect=True, **words).code == 0
    assert ask(replicas.controller, UPDATE_CONTROLLER_CONFIG, b"enableElectUncleanMaster=false").code == 0
    for each in folders.keys() - {number}:
        replicas.restart(each, folders[each])
    replicas.until_in_sync()
    send(replicas, range(100, 110))
    eventually(lambda: len(set(replicas.logs())) == 1, "equal logs")
    assert _numbers(replicas) == {*range(40), *range(100, 110)}


def _numbers(replicas: ReplicaSet) -> set[int]:
    log = replicas.logs()[0]
    return {number for number in range(120) if b"message %d" % number + b"\x01T" in log}
