"""An mqspark broker and name server in one child process, for tests and benchmarks."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mqspark.base.clock import wall_ms
from mqspark.client.blocking import BlockingClient
from mqspark.message import DEFAULT_TOPIC, Message, MessageExt, MessageQueue
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.admin_headers import CreateTopicRequestHeader
from mqspark.protocol.headers.client_headers import (
    PullMessageResponseHeader,
    SendMessageRequestHeaderV2,
    pull_header,
)
from mqspark.record.batchitems import encode_batch
from mqspark.record.record import decode_records
from tests.support.processes import mqspark_command, ready_line, start, stop
from tests.support.waiting import eventually


def read_queue(client: BlockingClient, address: str, queue: MessageQueue) -> Iterator[MessageExt]:
    """The messages that consumers see in a queue, in order, by plain pulls."""
    (end,) = client.max_offsets(address, [queue])
    position = 0
    while position < end:
        header = pull_header("check", queue, position, max_messages=32)
        answer = client.request(address, RequestCode.PULL_MESSAGE, header, accept=tuple(ResponseCode))
        if answer.code == ResponseCode.SUCCESS:
            yield from decode_records(answer.body)
        position = answer.header(PullMessageResponseHeader).next_begin_offset


class DevCluster:
    """``mqspark dev`` on free loopback ports. Ports and store stay the same after ``stop`` and ``start``."""

    def __init__(self, store: Path, *settings: str) -> None:
        self.store = store
        self._settings = settings
        self._ports = ["0", "0"]
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        command = [*mqspark_command(), "dev", "--store", str(self.store), "--http-port", "0"]
        command += ["--namesrv-port", self._ports[0], "--broker-port", self._ports[1]]
        for setting in self._settings:
            command += ["--set", setting]
        log = self.store.parent / f"{self.store.name}.log"
        self._process = start(command, log, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        fields = ready_line(self._process, log)
        self.nameserver, self.address = fields["namesrv"], fields["broker"]
        self.http = fields["http"]
        self._ports = [self.nameserver.rpartition(":")[2], self.address.rpartition(":")[2]]
        self.client = BlockingClient(self.nameserver)

    def stop(self, stop_signal: signal.Signals = signal.SIGTERM) -> None:
        self.client.close()
        if self._process is not None:
            stop(self._process, stop_signal)
            self._process = None

    def __enter__(self) -> DevCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- actions of tests -------------------------------------------------------------------------------------

    def create_topic(self, topic: str, queues: int = 4, *, attributes: str | None = None) -> str:
        """Create a topic or add queues to it; returns when the name server knows it."""
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
            attributes=attributes,
        )
        self.client.request(self.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        eventually(
            lambda: (
                topic in self.client.topics() and len(self.client.route(topic).subscribe_queues) == queues
            ),
            f"{topic} at the name server",
        )
        return topic

    def delete_topic(self, topic: str) -> None:
        self.client.request(self.address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        self.client.request(self.nameserver, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})

    def send(self, topic: str, queue_id: int, messages: list[Message]) -> None:
        """Send one batch to one queue, and wait for its acknowledgement."""
        header = SendMessageRequestHeaderV2.of("tests", topic, queue_id, wall_ms(), batch=True)
        self.client.request(self.address, RequestCode.SEND_BATCH_MESSAGE, header, encode_batch(messages))

    def send_numbers(self, topic: str, numbers: range, queues: int = 4) -> None:
        """Message ``n`` with body, key ``k<n>`` and tag ``odd`` or ``even`` goes to queue ``n % queues``."""
        for queue_id in range(queues):
            messages = [
                Message.of(
                    topic, str(n), keys=f"k{n}", tags="odd" if n % 2 else "even", properties={"n": str(n)}
                )
                for n in numbers
                if n % queues == queue_id
            ]
            for first in range(0, len(messages), 2000):
                self.send(topic, queue_id, messages[first : first + 2000])

    def queue_bodies(self, topic: str) -> dict[int, list[bytes]]:
        """The bodies that consumers see in each queue, in order."""
        found: dict[int, list[bytes]] = {}
        for queue in self.client.route(topic).subscribe_queues:
            found[queue.queue_id] = [each.body for each in read_queue(self.client, self.address, queue)]
        return found

    def group_offsets(self, group: str, topic: str) -> dict[int, int | None]:
        queues = list(self.client.route(topic).subscribe_queues)
        offsets = self.client.group_offsets(self.address, group, queues)
        return {queue.queue_id: offset for queue, offset in zip(queues, offsets, strict=True)}

    def max_offsets(self, topic: str) -> dict[int, int]:
        queues = list(self.client.route(topic).subscribe_queues)
        offsets = self.client.max_offsets(self.address, queues)
        return {queue.queue_id: int(offset) for queue, offset in zip(queues, offsets, strict=True)}
