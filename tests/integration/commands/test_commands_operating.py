"""``mqspark top``, ``doctor`` and ``mqadmin``: a cluster as its operator looks at it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from mqspark import LitePullConsumer, Message, Producer
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.testing import Cluster
from mqspark_server.commands.administration.mqadmin_cli import VERBS
from mqspark_server.commands.local.examination import diagnose, lines_of
from tests.support.commands import Outcome, mqspark
from tests.support.processes import run_python
from tests.support.scripted import Answer, Scripted
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1) as running:
        yield running


def ok(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome
    return outcome


def broker() -> tuple[str, str]:
    (row,) = mqspark("broker", "list", "-o", "json").json
    return row["broker"], row["address"]


# --- top --------------------------------------------------------------------------------------------------------


def test_top_shows_rates_and_lag(cluster: Cluster) -> None:
    ok(mqspark("topic", "create", "Busy"))
    ok(mqspark("produce", "Busy", "-b", "x", "-c", "40"))
    ok(mqspark("group", "create", "slow"))
    ok(mqspark("group", "reset", "slow", "Busy", "--earliest", "--yes"))
    stop = threading.Event()

    def send() -> None:
        with Producer(cluster.namesrv, group="busy") as producer:
            while not stop.is_set():
                producer.send(Message.of("Busy", "x"))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        shown = ok(mqspark("top", "-i", "0.5", "-o", "json")).json
        while not shown["topics"][0]["in_tps"]:
            shown = ok(mqspark("top", "-i", "1", "-o", "json")).json
    finally:
        stop.set()
        sender.join()
    assert shown["topics"][0]["topic"] == "Busy"
    (group,) = [row for row in shown["groups"] if row["group"] == "slow"]
    assert group["lag"] >= 40
    table = ok(mqspark("top", "-i", "0.1")).out
    assert table.count("IN/S") == 2
    assert "\x1b" not in table, "a pipe gets no screen"


# --- doctor -----------------------------------------------------------------------------------------------------


def test_a_healthy_cluster_is_called_so(cluster: Cluster) -> None:
    found = mqspark("doctor")
    assert "FAIL broker" not in found.out
    assert "FAIL name server" not in found.out
    name, address = broker()
    assert f"ok   broker {name}/0: {address} answers, version V5_5_1" in found.out
    assert f"ok   name server {cluster.namesrv}: answers" in found.out
    rows = mqspark("doctor", "-o", "json").json
    assert {"python", "mqspark", "ports"} <= {row["check"] for row in rows}


def test_what_is_in_the_way_is_named(cluster: Cluster) -> None:
    nobody = mqspark("doctor", "-n", "127.0.0.1:9")
    assert (nobody.code, "FAIL name server 127.0.0.1:9" in nobody.out) == (3, True)
    _, address = broker()
    confused = mqspark("doctor", "-n", address)
    assert (confused.code, "that is a broker, not a name server" in confused.out) == (3, True)
    both = mqspark("doctor", "-n", f"{cluster.namesrv};127.0.0.1:9")
    assert (both.code, f"ok   name server {cluster.namesrv}" in both.out) == (3, True)


@pytest.mark.parametrize(
    ("advertised", "says"),
    [
        ("127.0.0.1:9", "is brokerIP1 an address that clients reach"),
        ("172.17.0.2:10911", "inside a container network"),
    ],
)
async def test_an_address_that_nobody_reaches(advertised: str, says: str) -> None:
    """The name server says what a broker told it."""
    body = json.dumps(
        {
            "brokerAddrTable": {"b": {"cluster": "c", "brokerName": "b", "brokerAddrs": {"0": advertised}}},
            "clusterAddrTable": {"c": ["b"]},
        }
    ).encode()
    async with Scripted(lambda command: (0, {}, body)).serving() as server:
        found = lines_of(await diagnose(server.address, ClientOptions(connect_timeout_ms=300), 300))
    (line,) = [line for line in found if line.startswith("FAIL broker b/0")]
    assert advertised in line
    assert says in line


async def test_clocks_and_disks_are_judged() -> None:
    runtime = {
        "bootTimestamp": "1700000000000",
        "runtime": "[ 0 days, 0 hours, 1 minutes, 0 seconds ]",
        "commitLogDiskRatio": "0.95",
        "brokerVersionDesc": "V5_3_3",
        "brokerActive": "false",
    }
    cluster_info = b""

    def answer(command: Command) -> Answer:
        is_info = command.code == RequestCode.GET_BROKER_CLUSTER_INFO
        return 0, {}, cluster_info if is_info else json.dumps({"table": runtime}).encode()

    async with Scripted(answer).serving() as server:
        address = {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": server.address}}
        cluster_info = json.dumps(
            {"brokerAddrTable": {"b": address}, "clusterAddrTable": {"c": ["b"]}}
        ).encode()
        found = "\n".join(lines_of(await diagnose(server.address, ClientOptions(), 3000)))
    assert "s behind this machine's" in found
    assert "95% full: it refuses messages" in found
    assert "accepts no messages" in found


def test_a_taken_port_is_seen() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 10912))
            taken.listen()
        except OSError:
            pass  # somebody else has taken it
        assert "10912 (replication's)" in mqspark("doctor").out


def test_the_doctor_needs_no_click(cluster: Cluster) -> None:
    code = (
        "import sys; sys.modules['click'] = None; sys.argv[1:] = ['doctor', '-n', sys.argv[1], '-o', 'json']\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'click' else find(name, *more)\n"
        "from mqspark.__main__ import main; main()"
    )
    done = run_python(code, cluster.namesrv)
    assert done.stderr == ""
    assert {"name server " + cluster.namesrv, "java"} <= {row["check"] for row in json.loads(done.stdout)}


# --- mqadmin ----------------------------------------------------------------------------------------------------


def admin(*arguments: str) -> Outcome:
    return mqspark("mqadmin", *arguments)


def test_every_verb_of_mqadmin_does_what_it_says(cluster: Cluster) -> None:
    name, address = broker()
    where = ["-n", cluster.namesrv]
    done: set[str] = set()

    def run(verb: str, *arguments: str) -> str:
        done.add(verb)
        return ok(admin(verb, *arguments, *where)).out

    assert address in run("clusterList", "-m")
    assert "brokerVersionDesc" in run("brokerStatus", "-b", address)
    run(
        "updateTopic",
        "-t",
        "Old",
        "-b",
        address,
        "-r",
        "2",
        "-w",
        "2",
        "-p",
        "6",
        "-a",
        "+message.type=NORMAL",
    )
    run("updateTopic", "-t", "Old", "-c", "DefaultCluster", "-r", "3", "-w", "3")
    assert "3 queues to read, 3 to write" in run("topicStatus", "-t", "Old")
    run("updateTopicPerm", "-t", "Old", "-p", "4", "-b", name)
    assert "perm r" in run("topicRoute", "-t", "Old")
    run("updateTopicPerm", "-t", "Old", "-p", "6", "-b", name)
    assert "Old" in run("topicList")
    assert name in run("topicClusterList", "-t", "Old")
    run("sendMessage", "-t", "Old", "-p", "hello", "-k", "key", "-c", "tag", "-b", name, "-i", "0")
    assert run("printMsg", "-t", "Old") == "hello\n"
    assert run("printMsgByQueue", "-t", "Old", "-a", name, "-i", "0", "-s", "tag") == "hello\n"
    assert run("consumeMessage", "-t", "Old", "-b", name, "-i", "0", "-o", "0", "-c", "1") == "hello\n"
    row = mqspark("consume", "Old", "-o", "jsonl").json
    eventually(lambda: admin("queryMsgByKey", "-t", "Old", "-k", "key").code == 0)
    assert "hello" in run("queryMsgByKey", "-t", "Old", "-k", "key")
    assert "hello" in run("queryMsgById", "-i", row["offset_id"])
    assert "hello" in run("queryMsgByUniqueKey", "-t", "Old", "-i", row["message_id"])
    assert "hello" in run("queryMsgByOffset", "-t", "Old", "-b", name, "-i", "0", "-o", "0")
    assert "messages_per_second" in run("checkMsgSendRT", "-t", "Old", "-a", "10", "-s", "10")
    assert "IN/S" in run("statsAll", "-t", "Old")
    assert "Old" in run("statsAll")
    run("updateSubGroup", "-g", "olds", "-c", "DefaultCluster", "-r", "5", "-s", "true")
    assert "retries" in run("getConsumerConfig", "-g", "olds")
    run("setConsumeMode", "-g", "olds", "-t", "Old", "-m", "PULL", "-c", "DefaultCluster")
    assert admin("skipAccumulatedMessage", "-g", "olds", "-t", "Old").code == 2, "it asks, as everywhere here"
    run("skipAccumulatedMessage", "-g", "olds", "-t", "Old", "-f", "true", "--yes")
    run("resetOffsetByTime", "-g", "olds", "-t", "Old", "-s", "2020-01-01#00:00:00:000", "-y")
    run("resetOffsetByTime", "-g", "olds", "-t", "Old", "-s", "-1", "-b", name, "-q", "0", "-o", "1", "-y")
    run("cloneGroupOffset", "-s", "olds", "-d", "news", "-t", "Old", "-y")
    assert "Old" in run("consumerProgress", "-g", "olds")
    assert "olds" in run("consumerProgress")
    assert "olds" in run("brokerConsumeStats", "-b", address)
    assert "olds" in run("brokerConsumeStats")
    with LitePullConsumer(cluster.namesrv, group="online") as consumer:
        consumer.subscribe("Old")
        eventually(lambda: "PYTHON" in admin("consumerConnection", "-g", "online").out)
        run("consumerConnection", "-g", "online")
        run("consumerStatus", "-g", "online")
    run("producer", "-b", address)
    done.add("producerConnection")
    assert admin("producerConnection", "-t", "Old", "-g", "nobody", *where).code == 3
    done.add("queryMsgTraceById")
    assert admin("queryMsgTraceById", "-i", row["message_id"], *where).code == 3
    run("haStatus", "-b", address)
    assert "flushDiskType" in run("getBrokerConfig", "-b", address)
    run("updateBrokerConfig", "-b", name, "-k", "maxMessageSize", "-v", "4194303", "-y")
    assert "orderMessageEnable" in run("getNamesrvConfig")
    run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false", "-y")
    run("wipeWritePerm", "-b", name, "-y")
    run("addWritePerm", "-b", name, "-y")
    for verb in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        run(verb, "-c", "DefaultCluster", "-y")
    assert "Static" in run("updateStaticTopic", "-t", "Static", "-b", name, "-qn", "1")
    run("remappingStaticTopic", "-t", "Static", "-b", name)
    run("deleteSubGroup", "-g", "olds", "-r", "true", "-y")
    run("deleteTopic", "-t", "Old", "-c", "DefaultCluster", "-y")
    # With a controller: tests/unit/server/commands/test_controller_commands.py.
    of_controllers = {
        "getControllerMetaData": (),
        "getSyncStateSet": (),
        "electMaster": ("-b", "1", "-bn", name, "-c", "C"),
    }
    for verb, more in of_controllers.items():
        refused = admin(verb, "-a", address, *more)
        assert address in refused.out + refused.err, refused
        done.add(verb)
    assert done == set(VERBS)


def test_what_mqadmin_has_not_is_refused() -> None:
    assert "did you mean 'topicStatus'?" in admin("topicStats", "-t", "T").err
    assert admin("topicStatus").code == 2
    assert admin("topicStatus", "-t", "T", "--unknown").code == 2
    assert admin("topicStatus", "-t", "Nowhere").code == 3
    assert admin("printMsg", "-t", "count").code == 3, "a topic may be called as an option of consume"
    assert admin("updateTopicPerm", "-t", "T", "-p", "9", "-b", "b").code == 2
    assert admin("getBrokerConfig").code == 2
    assert "topicStatus" in ok(admin("-h")).out
