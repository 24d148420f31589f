"""Connections that take every descriptor: they are refused while files still get theirs, and a process that has none
left all the same goes on when it has some again."""

from __future__ import annotations

import contextlib
import os
import socket
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.store.disk.files import descriptor_limit
from mqspark_server.net.descriptors import OTHERS, Descriptors
from tests.security.processes import BrokerProcess, ask
from tests.support.processes import run_python
from tests.unit.broker_kit import send_ext


@pytest.mark.slow("a thousand connections; that accepting goes on is the fast twin")
def test_idle_connections_leave_files_their_descriptors(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "store", descriptors=512, mappedFileSizeCommitLog=1 << 20) as broker,
        contextlib.ExitStack() as idle,
    ):
        for _ in range(700):
            idle.enter_context(socket.create_connection(broker.address, timeout=60))
        with broker.connect() as honest:  # whoever has said nothing goes for it
            for number in range(60):
                header = send_ext(queue_id=number % 4, properties=f"KEYS\x01k{number}\x02")
                answer = ask(honest, RequestCode.SEND_MESSAGE_V2, header, bytes(100_000))
                assert answer.code == ResponseCode.SUCCESS, answer.remark
        open_files = len(os.listdir(f"/proc/{broker.popen.pid}/fd"))
        assert open_files < 512 - OTHERS // 2
        time.sleep(1.5)  # housekeeping
        with urllib.request.urlopen(f"{broker.ready['http']}/health/ready", timeout=20) as health:  # noqa: S310
            assert health.status == 200
        idle.close()
        log = broker.stop()
    assert broker.popen.returncode == 0
    assert "Traceback" not in log
    assert log.count("\n") < 40


def test_connections_of_every_kind_have_what_files_leave() -> None:
    shared = Descriptors()
    limit = descriptor_limit()
    shared.reserve(limit // 2)
    assert shared.room == limit - limit // 2 - OTHERS
    assert shared.take(10)
    assert not shared.take(limit - 5), "whoever uses them, few are left"
    shared.connections = shared.room
    assert not shared.take(10)
    shared.give_back()
    assert shared.take(10)
    shared.reserve(limit)
    assert shared.room == limit // 4


PROGRAM = """
    import asyncio, logging, os, resource, socket, sys, time
    from mqspark.base.logs import sparing
    from mqspark_server.net.addresses import bind_socket
    from mqspark_server.net.remotingserver import RemotingServer
    from mqspark_server.net import descriptors
    from mqspark.protocol.command import encode_request
    from tests.integration.servers.test_server_tcp import EchoCore, ECHO

    logging.basicConfig(level="INFO", stream=sys.stderr)
    sparing("asyncio")

    async def main():
        server = RemotingServer(EchoCore(), [], name="toy")
        listener = await server.listen(bind_socket("127.0.0.1", 0))
        server.start()
        limit = 200
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        descriptors.PROCESS.take = lambda descriptor: True  # nobody holds it back
        clients = [socket.socket() for _ in range(20)]
        held = []
        while True:
            try:
                held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", listener.port))
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(2.5)
        print("cpu", time.process_time() - cpu)
        for fd in held:
            os.close(fd)
        for client in clients:
            client.close()
        await asyncio.sleep(1.5)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(encode_request(ECHO, 1, None, b"x"))
        print("answered", len(await asyncio.wait_for(reader.read(100), 5)) > 0)
        writer.close()
        await server.close()

    if sys.argv[1] == "uvloop":
        import uvloop
        uvloop.run(main())
    else:
        asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_accepting_goes_on_after_there_was_no_descriptor(loop: str) -> None:
    done = run_python(textwrap.dedent(PROGRAM), loop)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["answered"] == "True", done.stderr
    assert float(said["cpu"]) < 1.0, "it spins"
    assert done.stderr.count("Traceback") <= 1, done.stderr
