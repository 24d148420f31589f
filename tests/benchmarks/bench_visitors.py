"""What stands still in a broker that has much while its pages, figures and routes are read.

    python -m tests.benchmarks visitors [--topics N] [--groups N] [--members N] [--halves N] [--timers N]
                                        [--only STORY ...] [--store DIR]

``mqspark dev`` with so many topics and groups, and one group with so many members, on a loop that times each callback
(watched.py). Story by story: what a visitor, a tool or a client asks, and the longest callbacks meanwhile by processor
time of the loop's thread, which a busy machine does not change, with where they were.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mqspark.protocol.codes import RequestCode
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.grpcservice import SERVICE
from tests.benchmarks.bench_broker import DevProcess
from tests.benchmarks.connection_load import frame, heartbeat, send_frame
from tests.benchmarks.grpc_load import Http2Load
from tests.benchmarks.report import figure
from tests.benchmarks.visitor_tools import SETTINGS, Tools
from tests.support.barehttp2 import header_block
from tests.support.grpcclients import endpoints, resource

CREATED_AT_ONCE = 1_000
SHOWN = 3
SETTLED_S = 8.0
"""The broker's console has loaded its client then."""
BIG = "Big"
"""The group with many members."""


class Wire:
    """A connection of the remoting protocol, a request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rb")

    def ask(self, *requests: bytes, may_fail: bool = False) -> None:
        """All at once."""
        self.tell(*requests)
        self.hear(len(requests), may_fail=may_fail)

    def tell(self, *requests: bytes) -> None:
        self._socket.sendall(b"".join(requests))

    def hear(self, answers: int, *, may_fail: bool = False) -> None:
        left = answers
        while left:
            size = int.from_bytes(self._file.read(4), "big")
            frame = self._file.read(size)
            if not frame:
                raise RuntimeError("the connection ended")
            header = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
            if header["flag"] & 1:  # else a notice
                left -= 1
                if header["code"] and not may_fail:
                    raise RuntimeError(f"refused: {header}")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Visited:
    """The broker, and what asks it."""

    def __init__(self, process: DevProcess, result: Path, asked: argparse.Namespace) -> None:
        self.process, self.asked = process, asked
        self._result = result
        self._stories = 0
        self.wire = Wire(process.port)
        host, _, port = process.ready["http"].removeprefix("http://").rpartition(":")
        self._http = http.client.HTTPConnection(host, int(port), timeout=120)
        self.members: list[Wire] = []
        self.tools = Tools(self.wire, result.parent / "store", BIG, asked.halves, asked.timers)

    def fill(self) -> None:
        for begin in range(0, self.asked.topics, CREATED_AT_ONCE):
            topics = [
                {"topicName": f"Topic-{number:06d}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
                for number in range(begin, min(begin + CREATED_AT_ONCE, self.asked.topics))
            ]
            body = json.dumps({"topicConfigList": topics}).encode()
            self.wire.ask(frame(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body))
        for begin in range(0, self.asked.groups, CREATED_AT_ONCE):
            groups = [
                {"groupName": f"Group-{number:06d}"}
                for number in range(begin, min(begin + CREATED_AT_ONCE, self.asked.groups))
            ]
            body = json.dumps({"groupConfigList": groups}).encode()
            self.wire.ask(frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body))
        for number in range(0, self.asked.groups, 4):
            ext = {
                "consumerGroup": f"Group-{number:06d}", "topic": f"Topic-{number % self.asked.topics:06d}",
                "queueId": "0", "commitOffset": "0",
            }  # fmt: skip
            self.wire.ask(frame(RequestCode.UPDATE_CONSUMER_OFFSET, ext))
        self.tools.make_wide()

    def get(self, path: str) -> bytes:
        self._http.request("GET", path)
        answer = self._http.getresponse()
        text = answer.read()
        self._http.close()  # the next story may come after the server's patience has ended
        if answer.status >= 300:
            raise RuntimeError(f"{path}: {answer.status} {text[:300]!r}")
        return text

    def pages(self, path: str) -> None:
        """Reads a list of the API to its end."""
        following = ""
        while True:
            page = json.loads(self.get(f"{path}?limit=1000" + (f"&after={following}" if following else "")))
            following = page["next"]
            if not following:
                return

    def join(self) -> None:
        self.members = [Wire(self.process.port) for _ in range(self.asked.members)]
        self.beat()

    def beat(self) -> None:
        for number, member in enumerate(self.members):
            member.ask(heartbeat(f"10.0.0.1@{number}#1", BIG))

    def ask_for_members(self) -> None:
        for member in self.members[:100]:
            member.ask(frame(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": BIG}))

    def leave(self) -> None:
        for member in self.members:
            member.close()
        time.sleep(2.0)

    def routes(self) -> None:
        load = Http2Load(self.process.ready["grpc"])
        block = header_block(f"/{SERVICE}/QueryRoute", x_mq_client_id="visitor")
        here = endpoints(self.process.ready["grpc"])
        requests = [
            pb.QueryRouteRequest(topic=resource(f"Topic-{number:06d}"), endpoints=here).SerializeToString()
            for number in range(self.asked.topics)
        ]
        load.run(block, requests, 64)

    def first_sends(self) -> None:
        """To each queue of a wide topic."""
        config = {"topicName": "bench", "readQueueNums": 256, "writeQueueNums": 256, "perm": 6}
        body = json.dumps({"topicConfigList": [config]}).encode()
        self.wire.ask(frame(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body))
        self.wire.ask(*map(send_frame, range(256)))

    def delete_topics(self) -> None:
        """In lists: each deletion is answered when the tables are saved, a second and more with so many topics."""
        for begin in range(0, min(self.asked.topics, 2_000), 500):
            names = [f"Topic-{number:06d}" for number in range(begin, min(begin + 500, self.asked.topics))]
            body = json.dumps({"topicList": names}).encode()
            self.wire.ask(frame(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, {}, body))
        time.sleep(3.0)

    def told(self) -> dict[str, Any]:
        """What ran since the last call."""
        self._stories += 1
        path = self._result.with_name(f"{self._result.name}.{self._stories}")
        self.process.process.send_signal(signal.SIGUSR2)
        while not path.exists():
            time.sleep(0.02)
        told: dict[str, Any] = json.loads(path.read_text())
        return told


def stories(visited: Visited) -> dict[str, Callable[[], object]]:
    page = visited.get
    return {
        "nothing, 15 s": partial(time.sleep, 15.0),
        "/metrics": lambda: [page("/metrics") for _ in range(3)],
        "API: topics": partial(visited.pages, "/api/v1/topics"),
        "API: groups": partial(visited.pages, "/api/v1/groups"),
        "console: overview": partial(page, "/console"),
        "console: topics": partial(page, "/console/topics"),
        "console: topics by name, down": partial(page, "/console/topics?sort=topic&down=1"),
        "console: a topic": partial(page, "/console/topics/Topic-000001"),
        "console: groups": partial(page, "/console/groups"),
        "console: a group's settings": partial(page, "/console/groups/Group-000001/config"),
        "console: lags": partial(page, "/console/lags"),
        "console: brokers": partial(page, "/console/brokers"),
        "console: producers": partial(page, "/console/producers"),
        "console: dead letters": partial(page, "/console/dead-letters"),
        "gRPC: routes of all topics": visited.routes,
        "a large group: all join": visited.join,
        "a large group: heartbeats": visited.beat,
        "a large group: lists of members": visited.ask_for_members,
        "console: a large group": partial(page, f"/console/groups/{BIG}"),
        "console: groups, with it": partial(page, "/console/groups"),
        "/metrics, with it": partial(page, "/metrics"),
        **dict(visited.tools.of_members()),
        "a large group: all leave": visited.leave,
        "first sends to 256 queues": visited.first_sends,
        **dict(visited.tools.stories()),
        "2,000 topics are deleted": visited.delete_topics,
    }


def show(story: str, told: dict[str, Any]) -> None:
    longest = told["by_processor"]
    most = longest[0]["cpu_ms"] if longest else 0.0
    print(
        f"{story:40} {most:6.2f} ms; {sum(told['long_cpu'].values())} over 2 ms of {told['turns']:,}",
        flush=True,
    )
    for each in longest[:SHOWN]:
        if each["cpu_ms"] >= 1.0:
            more = f", {each['gc']}" if each["gc_ms"] >= 1.0 else ""
            print(
                f"      {each['cpu_ms']:.2f} ms ({each['ms']:.2f} by the clock, {each['gc_ms']:.2f} garbage{more},"
                f" {each['faults']:,} new pages)"
                f" {each['what']}: {each['where']}"
            )
    figure(f"visitors, {story}, longest", "ms", [most], less_is_better=True)


@contextmanager
def watched_broker(folder: Path, asked: argparse.Namespace) -> Iterator[Visited]:
    result = folder / "turns.json"
    settings = (
        "grpcEnable=true", "maxNewGroupsPerConnection=1000000", "mappedFileSizeConsumeQueue=600000", *SETTINGS,
    )  # fmt: skip
    process = DevProcess(folder / "store", *settings, program=("-m", "tests.benchmarks.watched", str(result)))
    try:
        yield Visited(process, result, asked)
    finally:
        process.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks visitors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--halves", type=int, default=20_000)
    parser.add_argument("--timers", type=int, default=100_000)
    parser.add_argument("--only", action="append", help="stories whose names begin so")
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=asked.store, prefix="bench-visitors-") as name,
        watched_broker(Path(name), asked) as visited,
    ):
        time.sleep(SETTLED_S)
        visited.told()
        visited.fill()
        show("topics and groups are made", visited.told())
        for story, tell in stories(visited).items():
            if asked.only is None or story.startswith(tuple(asked.only)):
                tell()
                show(story, visited.told())


if __name__ == "__main__":
    main()
