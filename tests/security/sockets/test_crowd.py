"""An honest client beside a crowd of strangers (``crowd``): it is answered, and the server's memory is bounded."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL

import pytest
import trustme

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark_server.settings.serverconfig import ServerConfig
from tests.security.processes import BrokerProcess, ask
from tests.security.sockets.crowd import IDLE, LIARS, SLOW
from tests.support.processes import process
from tests.unit.broker_kit import send_ext

pytestmark = pytest.mark.slow("2,250 connections for half a minute; test_partial_frames is the fast twin")

SENDS = 1_500
PLAIN_BYTES = 4_000
"""Memory of one connection; up to 2.7 KB are measured."""
GROWTH_BYTES = 2 * ServerConfig().max_stranger_bytes + (IDLE + SLOW + LIARS) * PLAIN_BYTES
"""The first frames that are held, the room of those that were dropped, which the heap keeps, and the connections."""
TLS_BYTES = 24_000
"""Memory of one idle connection; 15 KB are OpenSSL's."""


def p99_s(broker: BrokerProcess) -> float:
    """That of single sends, one after the other, all of which are answered. It is printed: other tests use the machine,
    too."""
    took = []
    with broker.connect() as sock:
        for _ in range(SENDS):
            began = time.perf_counter()
            answer = ask(sock, RequestCode.SEND_MESSAGE_V2, send_ext(), b"x" * 100)
            took.append(time.perf_counter() - began)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            time.sleep(0.001)
    return sorted(took)[int(SENDS * 0.99)]


@pytest.mark.parametrize("idle", ["plain", "tls"])
def test_an_honest_client_is_answered_and_memory_is_bounded(tmp_path: Path, idle: str) -> None:
    settings: dict[str, object] = {}
    if idle == "tls":
        trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            tmp_path / "server.pem"
        )
        settings = {"tls.server.certPath": tmp_path / "server.pem"}
    with BrokerProcess(tmp_path / "store", descriptors=8_192, **settings) as broker:
        alone_s = min(p99_s(broker) for _ in range(3))
        before = broker.memory_bytes
        host, port = broker.address
        command = [sys.executable, "-m", "tests.security.sockets.crowd", host, str(port)]
        command += ["tls"] if idle == "tls" else []
        with process(command, tmp_path / "crowd.err", stdout=subprocess.PIPE, stop_signal=SIGKILL) as crowd:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "idle\n"
            each_bytes = (broker.memory_bytes - before) // IDLE
            assert crowd.stdout.readline() == "there\n"
            time.sleep(1)
            most, beside = 0, []
            for _ in range(3):
                beside.append(p99_s(broker))
                most = max(most, broker.memory_bytes)
            assert crowd.poll() is None
        told = f"p99 alone {alone_s * 1e3:.2f} ms, beside {[f'{each * 1e3:.2f}' for each in beside]}"
        print(
            told, f"memory {(most - before) / (1 << 20):+.1f} MiB, each idle connection {each_bytes:,} bytes"
        )
        allowed = GROWTH_BYTES
        if idle == "tls":
            assert each_bytes < TLS_BYTES
            allowed += IDLE * TLS_BYTES
        assert most - before < allowed, f"memory grew by {(most - before) >> 20} MiB"
