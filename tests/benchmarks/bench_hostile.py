"""How long an honest sender waits beside one hostile connection: latency of single sends on production's defaults.

Three processes: ``mqspark broker run``, this one with the sender (one message at a time, one every 2 ms), and the
attacker (``hostile_load.py``), whose one connection is always full of the requests of one kind. Run it on an idle
machine: the attacker takes one processor, the broker another one.

    python -m tests.benchmarks hostile [--seconds S] [KIND ...]

Aims: p99 under 50 ms and the maximum under 500 ms for every kind.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import encode_request
from mqspark.protocol.connection import Connection
from tests.benchmarks.hostile_load import KINDS, TOPIC_QUEUES, WIDE
from tests.security.processes import BrokerProcess
from tests.unit.broker_kit import send_ext

PREPARED = 20_000
"""Messages with a property and a key that are in the store before the attack."""

INTERVAL_S = 0.002


class Sender:
    def __init__(self, broker: BrokerProcess) -> None:
        self._sock = broker.connect()
        self._wire = Connection()

    def send(self, properties: str = "", *, count: int = 1, body: bytes = b"x" * 100) -> None:
        """``count`` messages in flight; raises AssertionError unless each is stored."""
        header = send_ext(properties=properties)
        frames = (encode_request(RequestCode.SEND_MESSAGE_V2, n, header, body) for n in range(count))
        self._sock.sendall(b"".join(frames))
        answered = 0
        while answered < count:
            data = self._sock.recv(1 << 16)
            assert data, "the broker closed the connection of an honest sender"
            for answer in self._wire.receive_data(data):
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                answered += 1

    def latencies_s(self, seconds: float) -> list[float]:
        times = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            self.send()
            took = time.perf_counter() - began
            times.append(took)
            time.sleep(max(0.0, INTERVAL_S - took))
        return sorted(times)

    def close(self) -> None:
        self._sock.close()


def prepare(broker: BrokerProcess) -> None:
    """A topic with as many queues as a client may ask for, a group with an offset, and messages to be filtered."""
    create = {"defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
    wide = {"topic": WIDE, "readQueueNums": str(TOPIC_QUEUES), "writeQueueNums": str(TOPIC_QUEUES)}
    answer = broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**create, **wide})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    group = b'{"groupName":"CG","consumeEnable":true}'
    answer = broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    offset = {"consumerGroup": "CG", "topic": WIDE, "queueId": "0", "commitOffset": "0"}
    answer = broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    sender = Sender(broker)
    for first in range(0, PREPARED, 500):
        sender.send(f"KEYS\x01key\x02a\x01{first}\x02", count=500)
    sender.close()


def beside(broker: BrokerProcess, kind: str, seconds: float) -> list[float]:
    """The sender's latencies during the attack, ascending."""
    host, port = broker.address
    command = [sys.executable, "-m", "tests.benchmarks.hostile_load", kind, host, str(port), str(seconds + 5)]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert attacker.stdout is not None
    try:
        assert attacker.stdout.readline() == "attacking\n"
        sender = Sender(broker)
        times = sender.latencies_s(seconds)
        sender.close()
        assert attacker.poll() is None, "the attacker ended before the measurement did"
        return times
    finally:
        attacker.kill()
        attacker.wait()
        attacker.stdout.close()


def report(name: str, times: list[float]) -> None:
    p50, p99 = (times[int(len(times) * share)] for share in (0.5, 0.99))
    figures = "".join(f"{value * 1000:>10,.1f}" for value in (p50, p99, times[-1]))
    print(f"{name:16}{len(times):>8,}{figures}", flush=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks hostile")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of measurement for each kind")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.kinds) - set(KINDS):
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are: {', '.join(KINDS)}")
    print(f"load average {os.getloadavg()[0]:.1f}")
    print(f"{'beside':16}{'sends':>8}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}")
    with tempfile.TemporaryDirectory(prefix="bench-hostile-") as folder:
        with BrokerProcess(Path(folder) / "store", enablePropertyFilter=True) as broker:
            prepare(broker)
            sender = Sender(broker)
            report("nothing", sender.latencies_s(asked.seconds))
            sender.close()
            for kind in asked.kinds or KINDS:
                report(kind, beside(broker, kind, asked.seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
