"""Unmodified mqadmin 5.5.0 and its Java producer and consumer (AclClientRPCHook) on our servers with users."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.driver import JavaDriver, java_driver
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.interop.test_credentials import with_users
from tests.support.clusters import Cluster, mqspark_broker, mqspark_namesrv

ROOT = ("root", "root-canary-secret")
ALICE = ("alice", "alice-canary-secret")
INNER = {"accessKey": "inner", "secretKey": "inner-canary-secret"}


class Tools(NamedTuple):
    cluster: Cluster
    java: JavaDriver

    def run(self, user: tuple[str, str], *arguments: str) -> str:
        """What a command printed and complained of, white space squeezed."""
        words = [*arguments, "-n", self.cluster.namesrv]
        result = self.java.call("mqadmin", arguments=words, access_key=user[0], secret_key=user[1])
        return " ".join(f"{result['out']} {result['err']}".split())


@pytest.fixture(scope="module")
def tools(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    folder = tmp_path_factory.mktemp("users")

    def settings(place: str) -> dict[str, object]:
        return {
            "authenticationEnabled": True,
            "authorizationEnabled": True,
            "authConfigPath": folder / place,
            "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
            "innerClientAuthenticationCredentials": json.dumps(INNER),
        }

    with ExitStack() as stack:
        namesrv = stack.enter_context(mqspark_namesrv(folder, settings("names")))
        names = {"brokerName": "b", "brokerClusterName": "C", **settings("users")}
        cluster = stack.enter_context(mqspark_broker(folder, namesrv, names))
        yield Tools(cluster, stack.enter_context(java_driver(jars, folder / "driver", "JSON")))


@pytest.mark.slow(
    "dozens of commands in a JVM; fast: tests/security/users and integration/servers/test_auth.py"
)
def test_users_and_policies_by_mqadmin(tools: Tools) -> None:
    broker, namesrv = tools.cluster.broker, tools.cluster.namesrv

    def root(*arguments: str) -> str:
        return tools.run(ROOT, *arguments)

    def alice(*arguments: str) -> str:
        return tools.run(ALICE, *arguments)

    assert "success" in root("updateTopic", "-c", "C", "-t", "Orders")
    assert "check signature failed." in alice("topicRoute", "-t", "Orders")

    # Users, at the broker and at the name server, which RocketMQ's has none of.
    for address in (broker, namesrv):
        assert "success" in root("createUser", "-b", address, "-u", ALICE[0], "-p", ALICE[1], "-t", "Normal")
        assert "The user is existed" in root("createUser", "-b", address, "-u", ALICE[0], "-p", "x")
        listed = root("listUser", "-b", address)
        assert "alice" in listed
        assert "root" in listed
        assert "canary" not in listed
    got = root("getUser", "-b", broker, "-u", ALICE[0])
    assert "Normal enable" in got
    assert "canary" not in got

    # Without a policy: nothing. The producer is RocketMQ's own, behind AclClientRPCHook.
    send = ("sendMessage", "-t", "Orders", "-p", "hello")
    assert "User:alice has no permission to access Topic:Orders" in alice("topicRoute", "-t", "Orders")
    assert "SEND_OK" not in alice(*send)
    assert "only a super user may do that" in alice("createUser", "-b", broker, "-u", "eve", "-p", "x")

    acl = ("-s", "User:alice", "-r", "Topic:Orders", "-a", "Pub,Sub", "-d", "Allow")
    for address in (broker, namesrv):
        assert "success" in root("createAcl", "-b", address, *acl)
    shown = root("getAcl", "-b", broker, "-s", "User:alice")
    assert "User:alice Custom Topic:Orders [Pub, Sub]" in shown
    assert "Allow" in shown
    assert "SEND_OK" in alice(*send)
    assert "has no permission to access Cluster:C" in alice("getBrokerConfig", "-b", broker)

    assert "success" in root("updateAcl", "-b", broker, *acl[:-4], "-a", "Pub", "-d", "Deny")
    assert "SEND_OK" not in alice(*send)
    assert "Deny" in root("listAcl", "-b", broker, "-s", "alice", "-r", "Orders")
    assert "success" in root("deleteAcl", "-b", broker, "-s", "User:alice", "-r", "Topic:Orders")
    assert "Topic:Orders" not in root("getAcl", "-b", broker, "-s", "User:alice")

    # From one server to another of the same users; sealed under another key, a password is refused.
    assert "success" in root("copyAcl", "-f", namesrv, "-t", broker, "-s", "User:alice")
    assert "SEND_OK" in alice(*send)
    copied = root("copyUser", "-f", namesrv, "-t", broker, "-u", "alice")
    assert "another key" in copied

    assert "success" in root("updateUser", "-b", broker, "-u", "alice", "-s", "disable")
    assert "SEND_OK" not in alice(*send)
    assert "success" in root("updateUser", "-b", broker, "-u", "alice", "-s", "enable")
    assert "SEND_OK" in alice(*send)
    assert "success" in root("deleteUser", "-b", broker, "-u", "alice")
    assert "SEND_OK" not in alice(*send)
    assert "the last enabled super user must stay" in root(
        "updateUser", "-b", broker, "-u", "inner", "-t", "Normal"
    ) + root("updateUser", "-b", broker, "-u", "root", "-t", "Normal")


@pytest.mark.slow("a RocketMQ of its own takes half a minute to start")
def test_users_and_policies_are_copied_from_a_rocketmq(tools: Tools, jars: Jars, tmp_path: Path) -> None:
    """Its store of users is in RocksDB, which nothing of ours reads: mqadmin is the way from there."""
    settings = with_users(tmp_path / "auth", ROOT)
    with rocketmq_namesrv(jars, tmp_path / "namesrv") as namesrv:
        with rocketmq_broker(jars, tmp_path / "broker", namesrv, settings=settings) as theirs:
            ours, carol = tools.cluster.broker, ("-u", "carol", "-p", "carol-canary-secret", "-t", "Normal")
            acl = ("-s", "User:carol", "-r", "Topic:Orders", "-a", "Pub,Sub", "-d", "Allow")
            assert "success" in tools.run(ROOT, "createUser", "-b", theirs.broker, *carol)
            assert "success" in tools.run(ROOT, "createAcl", "-b", theirs.broker, *acl)
            assert "success" in tools.run(ROOT, "copyUser", "-f", theirs.broker, "-t", ours, "-u", "carol")
            assert "success" in tools.run(
                ROOT, "copyAcl", "-f", theirs.broker, "-t", ours, "-s", "User:carol"
            )
    assert "Normal enable" in tools.run(ROOT, "getUser", "-b", ours, "-u", "carol")
    assert "Topic:Orders [Pub, Sub]" in tools.run(ROOT, "getAcl", "-b", ours, "-s", "User:carol")
    refused = tools.run(("carol", "carol-canary-secret"), "getBrokerConfig", "-b", ours)
    assert "User:carol has no permission to access Cluster:C" in refused, "its password came with it"
