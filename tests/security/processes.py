"""A broker in a process of its own, on production's defaults: for what only a whole process shows."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command, encode_request
from mqspark.protocol.connection import Connection


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
        command = [sys.executable, "-m", "mqspark_server.cli", "broker", "run"]
        for key, value in chosen.items():
            command += ["--set", f"{key}={value}"]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        self.log = root.with_name(root.name + ".log")
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        assert self.popen.stdout is not None
        assert select.select([self.popen.stdout], [], [], 60)[0], "no READY line"
        line = self.popen.stdout.readline()
        assert line.startswith("READY "), self.log.read_text()
        self.ready = dict(part.split("=", 1) for part in line.split()[1:])
        host, _, port = self.ready["broker"].rpartition(":")
        self.address = host, int(port)
        answer = self.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": "T",
                "readQueueNums": "4",
                "writeQueueNums": "4",
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "order": "false",
                "topicSysFlag": "0",
                "defaultTopic": "TBW102",
            },
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def ask(self, code: int, header: Mapping[str, str], body: bytes = b"") -> Command:
        with self.connect() as sock:
            return ask(sock, code, header, body)

    def send(self, body: bytes, properties: str = "", queue_id: int = 0) -> Command:
        return self.ask(RequestCode.SEND_MESSAGE_V2, send_header(properties, queue_id), body)

    @property
    def memory_bytes(self) -> int:
        """Of its own: what it maps of files is not counted."""
        for line in Path(f"/proc/{self.popen.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate(timeout=60)

    def stop(self) -> str:
        """What it has logged."""
        if self.popen.poll() is None:
            self.popen.terminate()
        self.popen.communicate(timeout=60)
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


def send_header(properties: str = "", queue_id: int = 0) -> dict[str, str]:
    return {
        "a": "PG",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
