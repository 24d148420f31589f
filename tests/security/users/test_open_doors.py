"""What RocketMQ 5.5.0 leaves open beside its requests (those are in test_auth): addresses that a peer claims, files."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mqspark.auth.policies import AclPolicy, Entry, PolicyType
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.signature import Signer
from mqspark.testing import Broker
from mqspark_server.settings.settingsfile import settings_file
from tests.support.remoting import RawConnection
from tests.support.users import with_users
from tests.support.waiting import eventually

ALICE = ("alice", "alice-secret")
ELSEWHERE = "203.0.113.7"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With a user who may read from elsewhere alone."""
    folder = tmp_path_factory.mktemp("doors")
    settings = with_users(inner=None, authConfigPath=str(folder / "users"), httpAllowedHosts="*")
    with Broker(store=folder / "store", http=True, settings=settings) as broker:
        authority = broker.apps[0].parts.core.authority
        assert authority is not None
        entry = Entry.parse("Cluster:*", ["Get", "List"], "Allow", [ELSEWHERE])

        def add() -> None:
            authority.users.add(*ALICE)
            authority.users.update_acl(ALICE[0], [AclPolicy(PolicyType.CUSTOM, (entry,))])

        broker.call(add)
        yield broker


@pytest.mark.parametrize(
    "words",
    [
        b"PROXY TCP4 203.0.113.7 127.0.0.1 1 10911\r\n",
        b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x07\x7f\x00\x00\x01\x00\x01\x2a\x9f",
    ],
    ids=["version 1", "version 2"],
)
def test_the_address_of_a_proxy_protocol_is_not_believed(guarded: Broker, words: bytes) -> None:
    """RocketMQ takes it from anybody, so that ``sourceIps`` of a policy can be forged."""
    host, _, port = guarded.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        peer.sendall(words)
        try:
            answered = peer.recv(100)
        except ConnectionResetError:
            return
    assert answered == b""


def test_a_source_that_is_claimed_gives_no_right(guarded: Broker) -> None:
    fields = {"ProxyProtocolAddr": ELSEWHERE, "proxy_protocol_addr": ELSEWHERE, "RemoteAddress": ELSEWHERE}
    with RawConnection(guarded.address, timeout_s=60) as connection:
        reply = connection.request(RequestCode.GET_BROKER_RUNTIME_INFO, **Signer(*ALICE).signed(fields))
    assert reply.code == ResponseCode.NO_PERMISSION
    assert "from 127.0.0.1" in reply.remark
    names = ["X-Forwarded-For", "X-Real-IP", "Forwarded", "CF-Connecting-IP", "True-Client-IP"]
    headers = dict.fromkeys(names, ELSEWHERE) | {"Forwarded": f"for={ELSEWHERE}"}
    answer = httpx.get(f"{guarded.http_url}/api/v1/cluster", headers=headers, auth=ALICE, timeout=60)
    assert answer.status_code == 403, answer.text


def test_files_of_users_are_their_owners(guarded: Broker) -> None:
    """RocketMQ's are readable by others, and so are its ``*.conf.bak``."""
    signer = Signer("root", "root-secret")
    for number in range(3):  # each change is a save, and the second one leaves a .bak
        body = json.dumps({"password": "x"}).encode()
        with RawConnection(guarded.address, timeout_s=60) as connection:
            ext = signer.signed({"username": f"user{number}"}, body)
            assert connection.request(RequestCode.AUTH_CREATE_USER, body, **ext).code == 0
    folder = Path(str(guarded.apps[0].settings.auth.auth_config_path))
    eventually(lambda: (folder / "users.auth.bak").exists(), "a second save")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert {"users.auth", "users.auth.bak", "users.auth.key", "audit.log"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_settings_file_and_its_copies_are_their_owners(tmp_path: Path, mode: int) -> None:
    """It may have secrets in it. RocketMQ writes it anew for everybody, and so its ``.bak``."""
    path = tmp_path / "broker.conf"
    path.write_text('initAuthenticationUser={"username":"root","password":"root-secret"}\n')
    path.chmod(mode)
    before = os.umask(0)
    try:
        for value in (True, False):
            settings = settings_file(path)
            assert settings is not None
            settings.save(json.dumps({"traceOn": value}).encode())
    finally:
        os.umask(before)
    assert "traceOn=false" in path.read_text()
    assert {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {path.name: mode}
