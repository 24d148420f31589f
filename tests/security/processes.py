"""A broker in a process of its own, on production's defaults: for what only a whole process shows."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection
from tests.support.processes import mqspark_command, ready_line, set_options, start, stop
from tests.support.remoting import topic_fields
from tests.unit.broker_kit import send_ext


class BrokerProcess:
    """``mqspark broker run``, with a topic T of four queues. ``descriptors``: soft and hard limit of open files."""

    def __init__(self, root: Path, *, descriptors: int | None = None, **settings: object) -> None:
        chosen = {
            "listenPort": 0,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "httpPort": 0,
            "storePathRootDir": root,
            "diskSpaceWarningLevelRatio": 100,
            "mappedFileSizeCommitLog": 64 << 20,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            **settings,
        }
        command = [*mqspark_command(), "broker", "run", *set_options(chosen)]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        self.log = root.with_name(root.name + ".log")
        self.popen = start(command, self.log, stdout=subprocess.PIPE)
        self.ready = ready_line(self.popen, self.log)
        host, _, port = self.ready["broker"].rpartition(":")
        self.address = host, int(port)
        answer = self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 4))
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def ask(self, code: int, header: Mapping[str, str], body: bytes = b"") -> Command:
        with self.connect() as sock:
            return ask(sock, code, header, body)

    def send(self, body: bytes, properties: str = "", queue_id: int = 0) -> Command:
        return self.ask(RequestCode.SEND_MESSAGE_V2, send_ext(queue_id=queue_id, properties=properties), body)

    @property
    def memory_bytes(self) -> int:
        """Memory of its own: what it maps of files is not counted."""
        for line in Path(f"/proc/{self.popen.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        stop(self.popen, signal.SIGKILL)

    def stop(self) -> str:
        """What it has logged."""
        stop(self.popen)
        return self.log.read_text()


def ask(sock: socket.socket, code: int, header: Mapping[str, str], body: bytes = b"") -> Command:
    sock.sendall(encode_request(code, 1, header, body))
    connection = Connection()
    while True:
        data = sock.recv(1 << 20)
        if not data:
            raise EOFError
        commands = connection.receive_data(data)
        if commands:
            return commands[0]
