"""Brokers without sockets that share a static topic; each answers the others' questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mqspark.protocol.bodies.body import encode_body
from mqspark.protocol.bodies.topic_bodies import LogicQueueMappingItem, TopicQueueMappingDetail
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.record.record import decode_records
from tests.support.remoting import topic_fields
from tests.unit.broker_kit import PULL, SEND, Bench, Peer, pull_ext, send_ext

TOPIC = "S"


def part(broker: str, logic: int, gen: int = 0, queue_id: int = 0, **more: int) -> LogicQueueMappingItem:
    return LogicQueueMappingItem(gen=gen, queue_id=queue_id, bname=broker, logic_offset=logic, **more)


def mapping(
    broker: str,
    hosted: Mapping[int, Sequence[LogicQueueMappingItem]],
    *,
    epoch: int = 1000,
    total: int = 1,
    **more: Any,
) -> TopicQueueMappingDetail:
    queues = {number: list(parts) for number, parts in hosted.items()}
    return TopicQueueMappingDetail(
        topic=TOPIC, total_queues=total, bname=broker, epoch=epoch, hosted_queues=queues, **more
    )


class Side:
    """One of the brokers and a client of it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.peer: Peer = bench.peer()

    @property
    def name(self) -> str:
        return self.bench.config.broker_name


class Pair:
    def __init__(self, directory: Path, names: Sequence[str] = ("b-a", "b-b"), **settings: Any) -> None:
        self.sides = {name: Side(Bench(directory / name, broker_name=name, **settings)) for name in names}
        self.is_cut = False
        """Whether the brokers do not reach each other."""
        self.asked = 0

    def close(self) -> None:
        for side in self.sides.values():
            side.bench.close()

    def reopen(self, name: str, *, crash: bool = False) -> None:
        bench = self.sides[name].bench
        (bench.crash if crash else bench.reopen)()
        self.sides[name].peer = bench.peer()

    def ask(self, name: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> Command:
        """The answer of a broker, after those of the other one that it needs."""
        (answer,) = self.asked_for(name, code, ext, body)
        return answer

    def asked_for(self, name: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> list[Command]:
        """What a request led to: nothing if it waits."""
        side = self.sides[name]
        side.peer.give(code, ext, body)
        for _ in range(4):
            while side.bench.broker.work():
                pass
            side.bench.broker.turn()
            side.bench.housekeeping()
            self.talk(name)
        return side.peer.heard()

    def talk(self, name: str) -> None:
        """Answer what the broker asks others."""
        peers = self.sides[name].bench.broker.state.peers
        while due := peers.due():
            for number, question in due:
                self.asked += 1
                if self.is_cut:
                    peers.failed(number, f"broker {question.broker_name} is cut off")
                else:
                    of_mapping = question.code == RequestCode.GET_TOPIC_CONFIG
                    assert question.ext["lo"] == ("true" if of_mapping else "false")
                    other = self.sides[question.broker_name].bench.peer()
                    peers.answered(number, other.ask(question.code, question.ext))

    def put(
        self,
        name: str,
        detail: TopicQueueMappingDetail,
        queues: int = 1,
        body: bytes | None = None,
        **ext: str,
    ) -> Command:
        header = topic_fields(TOPIC, queues, force="false") | ext
        body = encode_body(detail) if body is None else body
        return self.ask(name, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, header, body)

    def create(self) -> None:
        """One logic queue, on b-a."""
        assert self.put("b-a", mapping("b-a", {0: [part("b-a", 0)]})).code == 0

    def remap(self, logic: int = 10_000) -> None:
        """Move the queue from b-a to b-b as mqadmin does."""
        undecided = [part("b-a", 0), part("b-b", -1, gen=1)]
        decided = [part("b-a", 0), part("b-b", logic, gen=1)]
        assert self.put("b-b", mapping("b-b", {0: undecided}, epoch=2000)).code == 0
        assert self.put("b-a", mapping("b-a", {0: undecided}, epoch=2000)).code == 0
        assert self.put("b-b", mapping("b-b", {0: decided}, epoch=2000)).code == 0

    def send(self, name: str, body: bytes, queue_id: int = 0, **more: str) -> Command:
        return self.ask(name, SEND, send_ext(TOPIC, queue_id, **more), body)

    def pull(self, name: str, offset: int, **more: str) -> Command:
        return self.ask(name, PULL, pull_ext(TOPIC, 0, offset, **more))

    @staticmethod
    def records(answer: Command) -> list[tuple[int, bytes]]:
        """Logic offset and body of each message in the answer to a pull."""
        delta = int(answer.ext["offsetDelta"])
        return [(record.queue_offset + delta, record.body) for record in decode_records(bytes(answer.body))]

    def read_all(self, name: str, offset: int = 0) -> list[tuple[int, bytes]]:
        """Logic offset and body of all that a reader gets."""
        found: list[tuple[int, bytes]] = []
        while True:
            answer = self.pull(name, offset)
            if answer.code == 0:
                found += self.records(answer)
            before, offset = offset, int(answer.ext["nextBeginOffset"])
            if answer.code != 0 and offset == before:
                return found
