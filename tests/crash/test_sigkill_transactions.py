"""SIGKILL in the middle of transactions, several times on one store: in the end every committed message is there once,
and no other.

The broker is the real process with SYNC_FLUSH; the producers live through all of it. What they are not sure of is
settled by checks, which is what checks are for.
"""

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqspark import AdminClient, LitePullConsumer, Message, MessageExt, TransactionProducer, TransactionState
from mqspark.errors import ClientError
from tests.support.processes import free_port, mqspark_command, process, ready_line, set_options

TOPIC = "SigKillTransactions"
KILLS = 3
SENDERS = 4
ENDS_BEFORE_KILL = 40
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 500,
    "transactionOpBatchInterval": 700,  # so that a kill often takes op messages with it
    "transactionCheckMax": 1_000,
    "flushConsumerOffsetInterval": 300,
}
STATES = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)


class Truth:
    """What came of each local transaction, by the unique id of its message: None while it is under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: dict[str, bool | None] = {}
        self.ends = 0

    def execute(self, message: Message) -> TransactionState:
        number = int(message.body)
        with self._lock:
            self._outcomes[message.unique_id or ""] = number % 3 != 1
            self.ends += 1
        return STATES[number % 3]

    def check(self, message: MessageExt) -> TransactionState:
        with self._lock:
            outcome = self._outcomes.get(message.message_id, False)
        return TransactionState.COMMIT if outcome else TransactionState.ROLLBACK

    def committed(self) -> set[str]:
        with self._lock:
            return {unique_id for unique_id, outcome in self._outcomes.items() if outcome}


@contextmanager
def broker(folder: Path, ports: tuple[int, int]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    store = [
        "--store",
        str(folder / "store"),
        "--namesrv-port",
        str(ports[0]),
        "--broker-port",
        str(ports[1]),
    ]
    settings = set_options(SETTINGS)
    log = folder / "broker.err"
    command = [*mqspark_command(), "dev", *store, "--http-port", "0", *settings]
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield child, ready_line(child, log)["namesrv"]


def send(producer: TransactionProducer, number: int, stop: threading.Event) -> None:
    """Transactions until the end; those that a kill interrupts are left to the checks."""
    while not stop.is_set():
        number += SENDERS
        try:
            producer.send_in_transaction(Message.of(TOPIC, str(number)), timeout_ms=2_000)
        except ClientError:
            time.sleep(0.05)


def visible(namesrv: str) -> Counter[str]:
    found: Counter[str] = Counter()
    with LitePullConsumer(namesrv, group="sigkill-transactions") as consumer:
        queues = consumer.fetch_message_queues(TOPIC)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        while messages := consumer.poll(700):
            found.update(message.message_id for message in messages)
    return found


@pytest.mark.slow("kills a process several times; test_five_kills is the fast twin")
def test_sigkill_in_transactions(tmp_path: Path) -> None:
    ports = free_port(), free_port(neighbours=2)
    truth, stop = Truth(), threading.Event()
    namesrv = f"127.0.0.1:{ports[0]}"
    threads: list[threading.Thread] = []
    producer = TransactionProducer(
        namesrv, group="sigkill", check=truth.check, execute=truth.execute, retries=0, topics=[TOPIC]
    )
    try:
        for _ in range(KILLS):
            with broker(tmp_path, ports) as (child, _):
                if not threads:
                    with AdminClient(namesrv) as admin:
                        admin.create_topic(TOPIC)
                    producer.start()
                    threads = [
                        threading.Thread(target=send, args=(producer, number, stop))
                        for number in range(SENDERS)
                    ]
                    for thread in threads:
                        thread.start()
                wanted, deadline = truth.ends + ENDS_BEFORE_KILL, time.monotonic() + 60
                while truth.ends < wanted:
                    assert time.monotonic() < deadline, "the senders make no progress"
                    time.sleep(0.01)
                child.send_signal(signal.SIGKILL)
                child.wait()
        with broker(tmp_path, ports) as (_, namesrv):
            stop.set()
            for thread in threads:
                thread.join(30)
            expected = truth.committed()
            deadline = time.monotonic() + 90
            while (found := visible(namesrv)).keys() != expected and time.monotonic() < deadline:
                assert found.keys() <= expected
            assert found.keys() == expected, f"{len(expected - found.keys())} of {len(expected)} are missing"
            time.sleep(3)  # several rounds of checks: time enough for a second copy
            assert visible(namesrv) == Counter(expected)
            assert truth.ends > KILLS * ENDS_BEFORE_KILL
            producer.stop()
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
        producer.stop()
