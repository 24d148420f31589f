"""Which queues of a topic a group moves, where to, and by which requests: for commands, pages and HTTP alike."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mqspark.errors import BrokerError, InvalidMessage
from mqspark.message import MessageQueue
from mqspark.protocol.codes import ResponseCode
from mqspark_server.actions.offsetmoves import (
    BEGINNING_MS,
    END_MS,
    ClusterOffsets,
    MovesAllQueues,
    OffsetMove,
    QueueMove,
)

ONE, TWO = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
BOUNDS = {ONE: (10, 30), TWO: (0, 5)}


class Cluster:
    """An admin client of two brokers with a queue each, that notes what it is asked to change."""

    def __init__(
        self,
        *,
        server_side: tuple[str | None, str | None] = ("true", "true"),
        members: int = 0,
        refused: ResponseCode | None = None,
        static: bool = False,
    ) -> None:
        self._server_side = dict(zip("ab", server_side, strict=True))
        self._members = members
        self._refused = refused
        self._static = static
        self.changes: list[tuple[object, ...]] = []

    async def topic_route(self, topic: str) -> Any:
        return SimpleNamespace(
            is_static=self._static, subscribe_queues=[*BOUNDS], master=lambda broker: broker
        )

    async def topic_stats(self, topic: str) -> Any:
        assert not self._static, "brokers know the physical queues of a static topic"
        unread = MessageQueue("T", "b", 1)  # it is written, and no longer read
        return {
            queue: SimpleNamespace(min_offset=low, max_offset=high)
            for queue, (low, high) in {**BOUNDS, unread: (0, 9)}.items()
        }

    async def queue_bounds(self, queue: MessageQueue) -> tuple[int, int]:
        return BOUNDS[queue]

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return {ONE: 3, TWO: 4}[queue]

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        return 20 if queue == ONE else None

    async def group_members(self, group: str) -> Any:
        if not self._members:
            raise BrokerError(ResponseCode.CONSUMER_NOT_ONLINE, "nobody")
        one = SimpleNamespace(client_id="c", client_addr="", language="JAVA", version=1)
        return SimpleNamespace(consume_type="", message_model="", connection_set=[one] * self._members)

    async def broker_config(self, address: str) -> dict[str, str]:
        value = self._server_side[address]
        return {} if value is None else {"useServerSideResetOffset": value}

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        if self._refused is not None:
            raise BrokerError(self._refused, "no")
        self.changes.append(("all", timestamp_ms))
        return {}

    async def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.changes.append(("one", queue, offset))

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.changes.append(("commit", queue, offset))


def moves_of(move: OffsetMove, cluster: Any) -> dict[MessageQueue, QueueMove]:
    return asyncio.run(move.moves(ClusterOffsets(cluster)))


def changes_of(move: OffsetMove, cluster: Any) -> list[tuple[object, ...]]:
    async def apply() -> None:
        await move.make(cluster, await move.moves(ClusterOffsets(cluster)))

    asyncio.run(apply())
    changes: list[tuple[object, ...]] = cluster.changes
    return changes


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    ("at_ms", "after", "lags"),
    [(BEGINNING_MS, [10, 0], [20, 5]), (END_MS, [30, 5], [0, 0]), (1_000, [10, 4], [20, 1])],
    ids=["earliest", "latest", "time"],
)
def test_all_queues_that_are_read_move(at_ms: int, after: list[int], lags: list[int], static: bool) -> None:
    found = moves_of(OffsetMove("g", "T", at_ms), Cluster(static=static))
    assert [(queue, each.before, each.after, each.lag_after) for queue, each in found.items()] == [
        (ONE, 20, after[0], lags[0]),
        (TWO, None, after[1], lags[1]),
    ]


def test_chosen_queues_move_once_each() -> None:
    found = moves_of(OffsetMove("g", "T", offset=5, queues=["b:0", "b:0"]), Cluster())
    assert found == {TWO: QueueMove(0, before=None, after=5, min_offset=0, max_offset=5, lag_after=0)}


@pytest.mark.parametrize(
    ("move", "field", "text"),
    [
        (OffsetMove("g", "T", offset=6, queues=["b:0"]), "offset", "b:0 has offsets 0 to 5, not 6"),
        (OffsetMove("g", "T", offset=9, queues=["a:0"]), "offset", "a:0 has offsets 10 to 30, not 9"),
        (OffsetMove("g", "T", offset=12), "queue", "these are 2 queues: choose the one"),
        (OffsetMove("g", "T", queues=["b:1"]), "queue", "b:1 is not BROKER:NUMBER"),
    ],
)
def test_what_is_not_there_is_refused(move: OffsetMove, field: str, text: str) -> None:
    with pytest.raises(InvalidMessage, match=text) as refused:
        moves_of(move, Cluster())
    assert refused.value.field == field


ALL = OffsetMove("g", "T", BEGINNING_MS)
SINGLE = OffsetMove("g", "T", BEGINNING_MS, queues=["a:0"])
BOTH = OffsetMove("g", "T", END_MS, queues=["a:0", "b:0"])


@pytest.mark.parametrize("members", [0, 2])
def test_brokers_move_all_queues_by_one_request(members: int) -> None:
    assert changes_of(ALL, Cluster(members=members, server_side=(None, None))) == [("all", BEGINNING_MS)]


@pytest.mark.parametrize("members", [0, 2])
def test_brokers_that_can_move_single_queues(members: int) -> None:
    assert changes_of(BOTH, Cluster(members=members)) == [("one", ONE, 30), ("one", TWO, 5)]


@pytest.mark.parametrize("value", ["false", None])
def test_a_broker_that_would_move_all_queues_is_not_asked_for_one(value: str | None) -> None:
    cluster = Cluster(members=1, server_side=("true", value))
    assert changes_of(SINGLE, cluster) == [("one", ONE, 10)]
    cluster = Cluster(members=1, server_side=("true", value))
    with pytest.raises(MovesAllQueues, match="broker b cannot move single queues"):
        changes_of(BOTH, cluster)
    assert cluster.changes == []
    alone = Cluster(server_side=("true", value))
    assert changes_of(BOTH, alone) == [("commit", ONE, 30), ("commit", TWO, 5)]


@pytest.mark.parametrize("code", [ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR])
def test_offsets_of_a_group_without_members_are_committed(code: ResponseCode) -> None:
    assert changes_of(ALL, Cluster(refused=code)) == [("commit", ONE, 10), ("commit", TWO, 0)]
    with pytest.raises(BrokerError):
        changes_of(ALL, Cluster(refused=code, members=1))


def test_a_refusal_is_no_reason_to_commit() -> None:
    cluster = Cluster(refused=ResponseCode.NO_PERMISSION)
    with pytest.raises(BrokerError):
        changes_of(ALL, cluster)
    assert cluster.changes == []
