"""Who is let in by a slave and by a promoted master: whom their master let in, over real sockets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqspark import AdminClient, Credentials, Message, Producer, SendStatus
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.signature import Signer
from mqspark.testing import Cluster
from tests.support.remoting import RawConnection, Reply
from tests.support.users import with_users
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow(
    "clusters that fail over take ten seconds; tests/unit/auth/test_user_copies is the fast twin"
)

ROOT = Credentials("root", "root-secret")
ALICE = Credentials("alice", "alice-canary")
MALLORY = Credentials("mallory", "mallory-secret")
SETTINGS = with_users(inner=("inner", "inner-canary"))
POLICY = {
    "policies": [
        {
            "policyType": "Custom",
            "entries": [
                {"resource": "Topic:Orders", "actions": ["Pub", "Sub", "Get"], "decision": "Allow"},
                {"resource": "Group:p", "actions": ["Sub"], "decision": "Allow"},
            ],
        }
    ]
}


def ask(address: str, keys: Credentials, code: int, fields: dict[str, str], body: bytes = b"") -> Reply:
    signer = Signer(keys.access_key, keys.secret_key)
    with RawConnection(address, timeout_s=60) as connection:
        return connection.request(code, body, **signer.signed(fields, body))


def make_alice(address: str) -> None:
    body = json.dumps({"password": ALICE.secret_key, "userType": "Normal"}).encode()
    assert ask(address, ROOT, RequestCode.AUTH_CREATE_USER, {"username": "alice"}, body).code == 0
    acl = json.dumps(POLICY).encode()
    assert ask(address, ROOT, RequestCode.AUTH_CREATE_ACL, {"subject": "User:alice"}, acl).code == 0


def is_let_in(address: str, keys: Credentials) -> bool:
    reply = ask(address, keys, RequestCode.GET_MAX_OFFSET, {"topic": "Orders", "queueId": "0"})
    return reply.code != ResponseCode.NO_PERMISSION


def test_a_slave_knows_the_users_of_its_master(tmp_path: Path) -> None:
    with Cluster(slaves=1, store=tmp_path, settings=SETTINGS) as cluster:
        master, slave = (app.address for app in cluster.apps)
        with AdminClient(cluster.namesrv, credentials=ROOT) as admin:
            admin.create_topic("Orders", queues=1)
        assert not is_let_in(slave, ALICE)
        make_alice(master)
        eventually(lambda: is_let_in(slave, ALICE), "the slave to know alice")
        off = b'{"userStatus":"disable"}'
        assert ask(master, ROOT, RequestCode.AUTH_UPDATE_USER, {"username": "alice"}, off).code == 0
        eventually(lambda: not is_let_in(slave, ALICE), "the slave to know that alice is disabled")
        paths = list(cluster.store_paths)
    for path in paths:
        for file in (path / "config").rglob("*"):
            content = file.read_bytes() if file.is_file() else b""
            assert b"alice-canary" not in content, file
            assert b"inner-canary" not in content, file


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_a_promoted_master_knows_the_users_of_the_old_one(tmp_path: Path, is_killed: bool) -> None:
    settings = {**SETTINGS, "minInSyncReplicas": 1}
    with Cluster(brokers=2, replication="controller", store=tmp_path, settings=settings) as cluster:
        first = cluster.master
        assert first is not None
        with AdminClient(cluster.namesrv, credentials=ROOT) as admin:
            admin.create_topic("Orders", queues=1)
        slave = cluster.apps[1 - first].address
        make_alice(cluster.apps[first].address)
        mallory = b'{"password":"mallory-secret","userType":"Super"}'
        fields = {"username": "mallory"}
        there = cluster.apps[first].address
        assert ask(there, ROOT, RequestCode.AUTH_CREATE_USER, fields, mallory).code == 0
        eventually(lambda: is_let_in(slave, ALICE), "the slave to know alice")
        assert ask(there, ROOT, RequestCode.AUTH_DELETE_USER, fields).code == 0
        eventually(lambda: not is_let_in(slave, MALLORY), "mallory to be gone")
        (cluster.kill if is_killed else cluster.shut_down)(first)
        eventually(lambda: cluster.master == 1 - first, "the slave to be the master", 60)
        address = cluster.apps[1 - first].address
        eventually(lambda: is_let_in(address, ALICE), "the new master to know alice")
        with Producer(cluster.namesrv, group="p", credentials=ALICE, send_timeout_ms=60_000) as producer:
            assert producer.send(Message("Orders", b"x")).status is SendStatus.SEND_OK
        assert not is_let_in(address, MALLORY)
