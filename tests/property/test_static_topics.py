"""Static topics on three brokers: whatever the order of sends, remappings, crashes and reads, every message is read
once, in the order of its logic queue."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.protocol.bodies.topic_bodies import LogicQueueMappingItem
from mqspark.protocol.codes import ResponseCode
from tests.support.draws import draws
from tests.unit.static_kit import Pair, mapping, part

NAMES = ("b-a", "b-b", "b-c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("remap"), st.sampled_from(NAMES)),
        st.tuples(st.just("crash"), st.sampled_from(NAMES)),
        st.tuples(st.just("read"), st.integers(1, 3)),
    ),
    min_size=4,
    max_size=14,
)


class Model:
    """One logic queue, and a reader that follows it."""

    def __init__(self, directory: Path) -> None:
        self.pair = Pair(directory, NAMES, sync=True)
        self.parts: list[LogicQueueMappingItem] = [part("b-a", 0)]
        self.epoch = 1000
        self.queues = dict.fromkeys(NAMES, 0)
        """Physical queues of each broker."""
        self.queues["b-a"] = 1
        self.sent = 0
        self.offset = 0
        self.got: list[bytes] = []
        for name in NAMES:
            self.put(name, self.parts if name == "b-a" else None)

    @property
    def leader(self) -> str:
        return self.parts[-1].bname or ""

    def put(self, name: str, parts: list[LogicQueueMappingItem] | None) -> None:
        hosted = {} if parts is None else {0: parts}
        answer = self.pair.put(name, mapping(name, hosted, epoch=self.epoch), self.queues[name])
        assert answer.code == 0, answer.remark

    def send(self, count: int) -> None:
        for _ in range(count):
            assert self.pair.send(self.leader, b"%d" % self.sent).code == 0
            self.sent += 1

    def remap(self, to: str) -> None:
        old = self.leader
        if old == to:
            return
        self.epoch += 1000
        self.queues[to] += 1
        last = self.parts[-1]
        new = part(to, -1, gen=last.gen + 1, queue_id=self.queues[to] - 1)
        self.put(to, [*self.parts, new])
        # A producer that already knows the new leader is not refused, nor read too early.
        assert self.pair.send(to, b"%d" % self.sent).code == 0
        self.read(1, at=to)
        self.put(old, [*self.parts, new])
        bench = self.pair.sides[old].bench
        end = last.logic_offset + bench.store.offsets.max_offset("S", last.queue_id)
        new.logic_offset = (end // 10 + 2) * 10
        self.parts = [*self.parts, new]
        self.put(to, self.parts)
        for name in NAMES:
            if name not in (to, old):
                self.put(name, None)
        self.sent += 1

    def crash(self, name: str) -> None:
        self.pair.reopen(name, crash=True)

    def read(self, pulls: int, at: str | None = None) -> bool:
        """Whether there may be more."""
        for _ in range(pulls):
            answer = self.pair.pull(at or self.leader, self.offset, maxMsgNums="2")
            assert answer.code in (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
            if answer.code == 0:
                records = self.pair.records(answer)
                assert [offset for offset, _ in records] == [
                    self.offset + number for number in range(len(records))
                ]
                self.got += [body for _, body in records]
            before, self.offset = self.offset, int(answer.ext["nextBeginOffset"])
        return answer.code == 0 or self.offset != before


@settings(max_examples=draws(40))
@given(STEPS)
def test_every_message_is_read_once_and_in_order(steps: list[tuple[str, int | str]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory))
        try:
            for verb, argument in steps:
                getattr(model, verb)(argument)
            while model.read(1):
                pass
            assert model.got == [b"%d" % number for number in range(model.sent)]
            assert [body for _, body in model.pair.read_all(model.leader)] == model.got
        finally:
            model.pair.close()
