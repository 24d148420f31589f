"""``mqspark host run``: several brokers by one command, when all is well and when a process dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import trustme

from mqspark import AdminClient, Message, MessageQueue, Producer
from tests.support.clusters import (
    BrokerHost,
    brokers_known_to,
    mqspark_controller,
    mqspark_host,
    mqspark_namesrv,
)
from tests.support.processes import free_port, is_gone, mqspark_command, process, set_options, stop
from tests.support.waiting import eventually
from tests.support.web import get

ROOT = ("root", "root-canary-secret")


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mqspark_namesrv(tmp_path_factory.mktemp("namesrv")) as address:
        yield address


def ready_brokers(host: BrokerHost) -> list[str]:
    """Which brokers are ready, by the page."""
    body = get(f"{host.page}/health").json()
    return sorted(name for name, each in body["brokers"].items() if each["status"] == "ready")


def send_to_each(namesrv: str, topic: str, names: list[str], body: str) -> None:
    with Producer(namesrv, group="host") as producer:
        for name in names:
            producer.send(Message.of(topic, f"{body} {name}"), queue=MessageQueue(topic, name, 0))


def bodies(namesrv: str, topic: str, names: list[str]) -> list[str]:
    with AdminClient(namesrv) as admin:
        found = [admin.read(MessageQueue(topic, name, 0), 0).messages for name in names]
    return [message.body.decode() for each in found for message in each]


@pytest.mark.slow("a supervisor that restarts brokers; its end beside it is the fast twin")
def test_one_command_one_page_and_a_broker_that_is_killed_comes_back(namesrv: str, tmp_path: Path) -> None:
    names = ["h-0", "h-1"]
    with mqspark_host(tmp_path, namesrv, 2, stop_signal=signal.SIGINT) as host:
        ready = host.ready
        assert ready["namesrv"] == namesrv
        assert ready["store"] == str(tmp_path / "host")
        known = brokers_known_to(namesrv)
        assert [known[name]["0"] for name in names] == host.brokers
        assert sorted(each.name for each in (tmp_path / "host").iterdir()) == ["broker-0", "broker-1"]

        assert eventually(lambda: ready_brokers(host) == names, timeout_s=60)
        assert get(f"{host.page}/health/ready").status_code == 200
        text = get(f"{host.page}/metrics").text
        assert 'mqspark_host_broker_up{broker="h-1"} 1.0' in text
        for name in names:
            assert f'rocketmq_broker_ready{{broker="{name}",' in text

        with AdminClient(namesrv) as admin:
            admin.create_topic("Kept", queues=1)
        send_to_each(namesrv, "Kept", names, "before")
        killed = host.pids()["h-1"]
        os.kill(killed, signal.SIGKILL)
        assert eventually(
            lambda: f"h-1 (pid {killed}) ended by SIGKILL; it starts again in 1 s" in host.log.read_text()
        )
        down = get(f"{host.page}/health/ready")
        if down.status_code != 200:  # it may be back already
            assert down.json()["notReady"] == ["h-1"]
        assert eventually(lambda: ready_brokers(host) == names, timeout_s=60)
        after = host.pids()
        assert after["h-1"] != killed
        assert brokers_known_to(namesrv)["h-1"]["0"] == host.brokers[1]  # the same port
        assert bodies(namesrv, "Kept", names) == ["before h-0", "before h-1"]
        assert 'mqspark_host_broker_restarts_total{broker="h-1"} 1.0' in get(f"{host.page}/metrics").text
    assert host.child.returncode == 0, host.log.read_text()
    assert all(map(is_gone, after.values()))
    for name in ("broker-0", "broker-1"):
        assert not (tmp_path / "host" / name / "abort").exists()
    assert "Traceback" not in host.log.read_text()

    refused = fails(tmp_path, "--brokers", "1", "--store", str(tmp_path / "host"))
    assert refused[0] == 2
    assert "broker-1 has" in refused[1]
    assert "--leave-out" in refused[1]


def fails(folder: Path, *arguments: str, **settings: object) -> tuple[int, str]:
    """A host that does not start: its exit code and its lines of error. It leaves no process behind."""
    log = folder / "failed.err"
    log.unlink(missing_ok=True)
    values = {"bindAddress": "127.0.0.1", "brokerName": "f", "listenPort": 0, "httpPort": 0, **settings}
    command = [*mqspark_command(), "host", "run", *arguments, *set_options(values)]
    with process(command, log, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read() == ""
        code = child.wait(60)
    text = log.read_text()
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("mqspark: error: ")]
    return code, line


def test_brokers_end_when_their_supervisor_is_killed(namesrv: str, tmp_path: Path) -> None:
    """And the next supervisor waits for them, instead of failing at their locks."""
    with mqspark_host(tmp_path, namesrv, 2, {"brokerName": "k"}) as host:
        pids = host.pids()
        assert sorted(pids) == ["k-0", "k-1"]
        stop(host.child, signal.SIGKILL)
    with mqspark_host(tmp_path, namesrv, 2, {"brokerName": "k"}) as next_host:
        assert sorted(next_host.pids()) == ["k-0", "k-1"]
        # A process lives a moment longer than its locks.
        eventually(lambda: all(map(is_gone, pids.values())), "the brokers of before have ended")
        second = fails(tmp_path, "--brokers", "2", "--store", str(tmp_path / "host"))
        assert second[0] == 1
        assert "is in use" in second[1]
        assert str(next_host.child.pid) in second[1]
    assert next_host.child.returncode == 0


def test_a_port_in_use_stops_all(tmp_path: Path) -> None:
    """The first broker serves meanwhile, and is ended."""
    first = free_port(neighbours=12)
    with socket.create_server(("127.0.0.1", first + 10)):
        where = ("--brokers", "2", "--store", str(tmp_path))
        code, line = fails(tmp_path, *where, "--page-port", "0", listenPort=first)
        assert code == 1
        assert (
            f"f-1 ended with exit code 1 before it served: broker cannot listen on 127.0.0.1:{first + 10}"
            in line
        )
        code, line = fails(tmp_path, *where, "--page-port", str(first + 10))
        assert code == 1
        assert f"the page of this host cannot listen on 127.0.0.1:{first + 10}" in line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"flushDiskType": "NEVER"}, "flushDiskType"),
        ({"bindAddress": "192.0.2.1"}, "allowAnonymous"),
    ],
)
def test_a_bad_setting_starts_nothing(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    code, line = fails(tmp_path, "--brokers", "2", "--store", str(tmp_path / "s"), **settings)
    assert code == 2
    assert words in line
    assert not (tmp_path / "s").exists()


@pytest.mark.slow(
    "two processes more; the fast twin is test_host_page.py::test_brokers_decide_what_a_caller_sees"
)
def test_with_users_and_tls_the_page_shows_what_brokers_show_the_caller(namesrv: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    settings = {
        "brokerName": "u",
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}).replace(":", r"\:"),
        "httpTlsCertPath": tmp_path / "server.pem",
    }
    with mqspark_host(tmp_path, namesrv, 1, settings) as host, httpx.Client(verify=trust, timeout=60) as http:
        assert host.page.startswith("https://127.0.0.1:")
        assert eventually(lambda: http.get(f"{host.page}/health").status_code == 200, timeout_s=60)
        assert http.get(f"{host.page}/health").json()["brokers"] == {"u-0": {"status": "ready"}}
        told = http.get(f"{host.page}/health", auth=ROOT).json()["brokers"]
        assert told == {"u-0": {"status": "ready", "state": "ready"}}
        refused = http.get(f"{host.page}/metrics")
        assert (refused.status_code, refused.headers["www-authenticate"][:6]) == (401, "Bearer")
        assert http.get(f"{host.page}/metrics", auth=("root", "wrong")).status_code == 401
        assert 'rocketmq_broker_ready{broker="u-0",' in http.get(f"{host.page}/metrics", auth=ROOT).text


@pytest.mark.slow(
    "a controller and three processes more; test_host_plan.py says which settings each broker gets"
)
def test_in_controller_mode_each_broker_is_a_replica_of_its_own_name(namesrv: str, tmp_path: Path) -> None:
    with ExitStack() as ends:
        controller, _ = ends.enter_context(mqspark_controller(tmp_path))
        settings = {"brokerName": "c", "enableControllerMode": True, "controllerAddr": controller}
        host = ends.enter_context(mqspark_host(tmp_path, namesrv, 2, settings))
        known = brokers_known_to(namesrv)
        assert [known[name]["0"] for name in ("c-0", "c-1")] == host.brokers
