"""Two commands move the queue of a static topic at the same moment, in any order of their steps, and each may die.
After the repair every acknowledged message is read once, and those of one broker in their order."""

from __future__ import annotations

import tempfile
import types
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.client.admin import AdminClient
from mqspark.client.statictopics import StaticTopics
from mqspark.errors import BrokerError, MQError
from mqspark.protocol.bodies.topic_bodies import BrokerData, ClusterInfo
from mqspark.protocol.command import Command
from mqspark.protocol.headers.header import Header, to_ext
from tests.support.draws import draws
from tests.unit.static_kit import TOPIC, Pair

NAMES = ("b-a", "b-b", "b-c")


@types.coroutine
def between() -> Generator[None]:
    yield


class Admin:
    """What ``StaticTopics`` asks of an admin client: brokers without sockets. Each request is a step."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: BrokerData(broker_name=name, broker_addrs={0: name}) for name in NAMES},
            cluster_addr_table={"C": list(NAMES)},
        )

    async def ask(self, address: str, code: int, header: Header, body: bytes = b"") -> Command:
        await between()
        answer = self._pair.ask(address, code, to_ext(header), body)
        if answer.code:
            raise BrokerError(answer.code, answer.remark, address=address)
        return answer


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value


class World:
    def __init__(self, directory: Path) -> None:
        self.pair = Pair(directory, NAMES)
        self.statics = StaticTopics(cast(AdminClient, Admin(self.pair)))
        self.acknowledged: list[str] = []
        finished(self.statics.carry_out(finished(self.statics.plan_growth(TOPIC, 1, ["b-a"]))))

    def send(self) -> None:
        """To every broker that takes it: producers may know either of two leaders."""
        for name in NAMES:
            text = f"{name} {len(self.acknowledged)}"
            if self.pair.send(name, text.encode()).code == 0:
                self.acknowledged.append(text)

    def step(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Whether there is more to do."""
        try:
            work.send(None)
        except (StopIteration, MQError):
            return False
        return True

    def check(self) -> None:
        configs, _ = finished(self.statics.repair(TOPIC))
        (leader,) = [
            name for name, config in configs.items() if config.mapping_detail.hosted_queues.get(0, [None])[-1]
            and config.mapping_detail.hosted_queues[0][-1].bname == name
        ]  # fmt: skip
        self.acknowledged.append(f"{leader} last")
        assert self.pair.send(leader, self.acknowledged[-1].encode()).code == 0
        read = [body.decode() for _, body in self.pair.read_all(leader)]
        assert sorted(read) == sorted(self.acknowledged)
        assert read[-1] == self.acknowledged[-1]
        for name in NAMES:
            own = [text for text in self.acknowledged if text.startswith(name)]
            assert [text for text in read if text.startswith(name)] == own
        assert finished(self.statics.repair(TOPIC))[1] == 0
        back = finished(self.statics.plan_move(TOPIC, ["b-a"]))
        finished(self.statics.carry_out(back))  # the topic can be moved again
        assert [body.decode() for _, body in self.pair.read_all("b-a")] == read


@settings(max_examples=draws(12))
@given(st.lists(st.sampled_from((0, 1)), max_size=16))
def test_two_moves_at_the_same_moment_lose_nothing(order: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        try:
            plans = [finished(world.statics.plan_move(TOPIC, [to])) for to in ("b-b", "b-c")]
            moves = [world.statics.carry_out(plan) for plan in plans]
            alive = [True, True]
            world.send()
            for which in order:
                if alive[which]:
                    alive[which] = world.step(moves[which])
                world.send()
            for move in moves:
                move.close()
            world.check()
        finally:
            world.pair.close()
