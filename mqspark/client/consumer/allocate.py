"""RocketMQ's strategies for allocating queues to the members of a group, as pure functions.

Every member computes the allocation itself from the same two lists, so the lists must have the same order
everywhere (``sort_queues``, ``sort_clients``: Java's string order) and contain every client once. Facts:
docs/rocketmq/client.md#allocation (AllocateMessageQueue* classes).
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from mqspark.errors import ConfigError
from mqspark.message import MessageQueue


class Allocation(Protocol):
    """A strategy that allocates queues to the members of a group; a program may write its own."""

    @property
    def name(self) -> str:
        """The name on the wire (QUERY_ASSIGNMENT) and in a consumer's running info."""

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of ``client_id``; empty if it is not in ``clients``. Both lists are sorted."""


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Sorted by topic, broker name, queue id, as by MessageQueue.compareTo."""
    return sorted(queues, key=lambda queue: (_utf16(queue.topic), _utf16(queue.broker_name), queue.queue_id))


def sort_clients(clients: Iterable[str]) -> list[str]:
    return sorted(clients, key=_utf16)


def _utf16(text: str) -> bytes:
    """Java compares strings by UTF-16 unit, which equals the byte order of their big-endian encoding."""
    return text.encode("utf-16-be", "surrogatepass")


def _position(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> int | None:
    if not client_id or not queues or not clients:
        raise ConfigError("an allocation needs a client id, a queue and a member", key="allocation")
    return clients.index(client_id) if client_id in clients else None


class Averagely:
    """Contiguous ranges of queues; the first members get one more if the number does not divide evenly."""

    name = "AVG"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        index = _position(client_id, queues, clients)
        if index is None:
            return []
        share, remainder = divmod(len(queues), len(clients))
        start = index * share + min(index, remainder)
        end = start + share + (1 if index < remainder else 0)
        return list(queues[start:end])


class AveragelyByCircle:
    """Every M-th queue."""

    name = "AVG_BY_CIRCLE"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        index = _position(client_id, queues, clients)
        return [] if index is None else list(queues[index :: len(clients)])


class Fixed:
    """The given queues, whatever the other members are."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = list(queues)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self._queues)


class ConsistentHash:
    """A hash ring with ``virtual_nodes`` points per member: few queues move when the group changes."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10) -> None:
        if virtual_nodes < 1:
            raise ConfigError(f"virtual_nodes={virtual_nodes} must be positive", key="virtual_nodes")
        self._virtual_nodes = virtual_nodes

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        if _position(client_id, queues, clients) is None:
            return []
        ring = sorted(
            (_ring_hash(f"{client}-{number}"), client)
            for client in clients
            for number in range(self._virtual_nodes)
        )
        points = [point for point, _ in ring]
        mine = []
        for queue in queues:
            owner = ring[bisect.bisect_left(points, _ring_hash(_java_text(queue))) % len(ring)][1]
            if owner == client_id:
                mine.append(queue)
        return mine


def _java_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _ring_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


class MachineRoom:
    """Only queues whose broker is named ``<room>@<name>`` with one of the given rooms."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        index = _position(client_id, queues, clients)
        if index is None:
            return []
        near = []
        for queue in queues:
            room, separator, rest = queue.broker_name.partition("@")
            if separator and "@" not in rest and room in self._rooms:
                near.append(queue)
        share, remainder = divmod(len(near), len(clients))
        mine = near[index * share : (index + 1) * share]
        if index < remainder:
            mine.append(near[share * len(clients) + index])
        return mine


class MachineRoomNearby:
    """``inner`` within each room; the queues of a room without members are divided among all members.

    ``broker_room`` and ``client_room`` name the room of a queue and of a client id.
    """

    def __init__(
        self,
        inner: Allocation,
        *,
        broker_room: Callable[[MessageQueue], str],
        client_room: Callable[[str], str],
    ) -> None:
        self._inner = inner
        self._broker_room = broker_room
        self._client_room = client_room

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy, with that of the inner one."""
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        if _position(client_id, queues, clients) is None:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(self._named(self._broker_room(queue), queue), []).append(queue)
        clients_of: dict[str, list[str]] = {}
        for client in clients:
            clients_of.setdefault(self._named(self._client_room(client), client), []).append(client)
        here = self._client_room(client_id)
        mine: list[MessageQueue] = []
        if here in queues_of:
            mine += self._inner(client_id, queues_of[here], clients_of[here])
        for room in sort_clients(queues_of.keys() - clients_of.keys()):
            mine += self._inner(client_id, queues_of[room], clients)
        return mine

    @staticmethod
    def _named(room: str, of: object) -> str:
        if not room:
            raise ConfigError(f"no machine room is known for {of}", key="allocation")
        return room
