"""Unmodified RocketMQ brokers in controller mode, and mqadmin's commands, under our controller."""

import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqspark import Message, Producer, SendStatus
from mqspark.errors import MQError
from tests.interop.driver import java_driver
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker
from tests.interop.topics import max_offset
from tests.support.clusters import Cluster, mqspark_controller, mqspark_namesrv
from tests.support.processes import HOST, free_port
from tests.support.remoting import ask
from tests.support.replicaset import state_of
from tests.support.waiting import eventually

NAME, TOPIC = "pair", "Failover"
BOTH = {1, 2}


state = partial(state_of, name=NAME)


def in_sync(controller: str) -> set[int]:
    return {each["brokerId"] for each in state(controller).get("inSyncReplicas", ())}


def until_both_are_in_sync(controller: str) -> None:
    eventually(lambda: in_sync(controller) == BOTH, lambda: state(controller))


@pytest.mark.slow("two Java brokers start; tests/unit/controller/test_controller.py is the fast twin")
def test_rocketmq_brokers_fail_over_under_our_controller(jars: Jars, tmp_path: Path) -> None:
    with ExitStack() as stack:
        enter = stack.enter_context
        namesrv = enter(mqspark_namesrv(tmp_path / "namesrv"))
        port = free_port()
        running = stack.enter_context(ExitStack())
        controller, _ = running.enter_context(mqspark_controller(tmp_path, port))
        settings = {
            "brokerClusterName": "Pair",
            "brokerName": NAME,
            "enableControllerMode": True,
            "controllerAddr": controller,
            "allAckInSyncStateSet": True,
            "flushDiskType": "SYNC_FLUSH",
        }
        brokers: dict[int, Cluster] = {}
        for number in sorted(BOTH):
            folder = tmp_path / f"broker{number}"
            brokers[number] = enter(
                rocketmq_broker(jars, folder, namesrv, settings=settings, registered=False)
            )
            eventually(lambda: len(_ids(state(controller))) == len(brokers), lambda: state(controller))
        until_both_are_in_sync(controller)
        first = state(controller)
        assert (first["masterBrokerId"], first["masterEpoch"]) == (1, 1)
        assert first["masterAddress"] == brokers[1].broker

        producer = enter(Producer(namesrv, group="P"))
        sent = 0

        def sends() -> bool:
            try:
                return producer.send(Message(TOPIC, b"x")).status is SendStatus.SEND_OK
            except MQError:
                return False

        def send_some() -> int:
            eventually(sends, "a message to be taken")
            return 1 + sum(sends() for _ in range(20))

        sent += send_some()
        admin = enter(java_driver(jars, tmp_path / "driver", "JSON"))
        printed = admin.mqadmin("getControllerMetaData", "-a", controller)
        assert printed.split("\n")[1:5] == [
            "#ControllerGroup\tmqspark",
            "#ControllerLeaderId\tn0",
            f"#ControllerLeaderAddress\t{controller}",
            f"#Peer:\tn0:{controller}",
        ]
        printed = admin.mqadmin("getSyncStateSet", "-a", controller, "-b", NAME)
        assert f"#brokerName\t{NAME}\n#MasterBrokerId\t1\n#MasterAddr\t{brokers[1].broker}\n" in printed
        assert printed.count("\nInSyncReplica:") == 2, printed
        printed = admin.mqadmin("getControllerConfig", "-a", controller)
        assert "enableElectUncleanMaster" in printed
        words = ("-k", "scanNotActiveBrokerInterval", "-v", "1000")
        printed = admin.mqadmin("updateControllerConfig", "-a", controller, *words)
        assert "update controller config success!" in printed
        refused = admin.call("mqadmin", arguments=["cleanBrokerMetadata", "-a", controller, *_PAIR])
        assert "is still alive, clean up failure" in refused["err"]

        # An operator's choice.
        printed = admin.mqadmin("electMaster", "-a", controller, "-b", "2", *_PAIR)
        assert f"#BrokerMasterAddr\t{brokers[2].broker}\n#MasterEpoch\t2\n" in printed
        until_both_are_in_sync(controller)
        assert state(controller)["masterBrokerId"] == 2
        sent += send_some()

        # The controller dies and comes back: nobody is elected, and the epoch stays.
        running.close()
        sent += send_some()
        running.enter_context(mqspark_controller(tmp_path, port))
        eventually(
            lambda: [each["alive"] for each in state(controller)["inSyncReplicas"]] == [True, True],
            lambda: state(controller),
        )
        assert (state(controller)["masterBrokerId"], state(controller)["masterEpoch"]) == (2, 2)
        sent += send_some()
        until_both_are_in_sync(controller)

        # The master dies.
        os.kill(brokers[2].broker_pid, signal.SIGKILL)
        eventually(lambda: state(controller)["masterBrokerId"] == 1, lambda: state(controller))
        assert state(controller)["masterEpoch"] == 3
        assert in_sync(controller) == {1}
        sent += send_some()
        stored = sum(max_offset(brokers[1], TOPIC, queue_id) for queue_id in range(8))
        assert stored >= sent, "acknowledged messages are not at the new master"
        printed = admin.mqadmin("cleanBrokerMetadata", "-a", controller, "-b", "2", *_PAIR)
        assert "metadata from controller success!" in printed
        assert _ids(state(controller)) == {1}


_PAIR = ("-bn", NAME, "-c", "Pair")


def _ids(found: dict[str, Any]) -> set[int]:
    return {
        each["brokerId"] for key in ("inSyncReplicas", "notInSyncReplicas") for each in found.get(key, ())
    }


def test_a_name_server_is_a_controller_too(tmp_path: Path) -> None:
    """No Java: the answer of RocketMQ's controller in its name server, on its second port."""
    address = f"{HOST}:{free_port()}"
    own = {
        "enableControllerInNamesrv": True,
        "controllerDLegerSelfId": "n0",
        "controllerDLegerPeers": f"n0-{address}",
        "controllerStorePath": tmp_path / "controller",
    }
    with mqspark_namesrv(tmp_path, own) as namesrv:
        reply = ask(address, 1005)
        assert (reply.code, reply.ext["controllerLeaderAddress"]) == (0, address)
        assert reply.ext["isLeader"] == "true"
        assert ask(namesrv, 1005).code == 3, "the name server's own port is none of a controller"
