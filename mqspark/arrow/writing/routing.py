"""Assigns rows to queues: by the option or the column topic, by partition or queueId, by key, or in turn.

Must not know how rows are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqspark.arrow.records.encode import Rows, key_hashes
from mqspark.arrow.writing.sendchoice import SendChoice
from mqspark.base.logs import escaping
from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.topic_routes import TopicRoute
from mqspark.errors import ConfigError, InvalidMessage, MQError, NoRoute
from mqspark.message import MessageQueue, check_topic

log = escaping("mqspark.arrow")

_LEAST_ROWS_A_TURN = 1024
"""The number of rows without a key, or a whole send, that go to one queue before the next queue is used."""


class Router:
    def __init__(
        self, options: SendChoice, client: BlockingClient, *, first_turn: int, has_written: bool = False
    ) -> None:
        """``has_written``: batches of this query were written before, so a topic without a route is that of a broker
        which is away for a while."""
        self._options = options
        self._client = client
        self._has_written = has_written
        self._routes: dict[str, TopicRoute] = {}
        self._addresses: dict[str, str] = {}
        """Broker to the last known address of its master; a broker that is away has no other."""
        self._leaders: dict[MessageQueue, str] = {}
        """Logic queue of a static topic to the last known address of the broker that takes its messages."""
        self._turn = first_turn

    def placed(
        self, batch: pa.RecordBatch, rows: Rows
    ) -> Iterator[tuple[Sequence[MessageQueue], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """For each topic: its queues, its rows, and for each row the index of its queue."""
        for topic, chosen in self._by_topic(batch):
            queues = self._route(topic).publish_queues
            yield queues, chosen, self._targets(batch, rows, queues, chosen)

    def address(self, queue: MessageQueue) -> str:
        """Raises NoRoute."""
        address = self._leaders.get(queue) or self._addresses.get(queue.broker_name)
        if address is None:
            raise NoRoute(queue.topic, f"broker {queue.broker_name} has no address")
        return address

    def instead_of(self, queue: MessageQueue) -> MessageQueue:
        """Rows stay in the queue that was chosen for them."""
        return queue

    def refresh(self, topic: str) -> None:
        """Refresh brokers' addresses; the queues assigned to rows do not change. Never waits for a name server."""
        try:
            with self._client.without_retries():
                route = self._client.publish_route(topic)
        except MQError as error:
            log.info("the route of %s could not be refreshed: %s", topic, error)
        else:
            self._note_addresses(route)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        """Each topic and its rows."""
        if self._options.topic is not None:
            yield self._options.topic, np.arange(batch.num_rows)
            return
        column = batch.column("topic")
        if column.null_count:
            raise InvalidMessage("topic: null in a row, and there is no option topic", field="topic")
        codes = column.dictionary_encode()
        indices = codes.indices.to_numpy()
        for index, topic in enumerate(codes.dictionary.to_pylist()):
            check_topic(topic)
            yield topic, np.flatnonzero(indices == index)

    def _route(self, topic: str) -> TopicRoute:
        route = self._routes.get(topic)
        if route is None:

            def look_up() -> TopicRoute:
                route = self._client.publish_route(topic)
                if not route.publish_queues:
                    # While a master is away its slaves stay in the route, and one that acts for it takes no messages.
                    raise NoRoute(topic, "it has no writable queue")
                return route

            route = self._client.bridged(look_up) if self._has_written else look_up()
            if route.is_static and self._options.exactly_once:
                raise ConfigError.of(
                    "deliveryGuarantee",
                    f"exactly-once cannot write to {topic}, which is a static topic: the queue of a "
                    "half message may move before it is committed; write at-least-once",
                )
            self._routes[topic] = route
            self._note_addresses(route)
        return route

    def _note_addresses(self, route: TopicRoute) -> None:
        if route.is_static:
            for queue in route.publish_queues:
                leader = route.master(route.broker_of(queue))
                if leader is not None:
                    self._leaders[queue] = leader
            return
        for name in {queue.broker_name for queue in route.publish_queues}:
            address = route.master(name)
            if address is not None:
                self._addresses[name] = address

    def _targets(
        self,
        batch: pa.RecordBatch,
        rows: Rows,
        queues: Sequence[MessageQueue],
        chosen: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """For each chosen row, the index of its queue in ``queues``."""
        count = len(queues)
        sends = -(-rows.size_bytes * len(chosen) // (max(1, rows.count) * self._options.batch_bytes))
        turns = max(1, sends, min(count, len(chosen) // _LEAST_ROWS_A_TURN))
        targets: npt.NDArray[np.int64] = (
            self._turn + np.arange(len(chosen), dtype=np.int64) * turns // max(1, len(chosen))
        ) % count
        self._turn += turns
        if rows.sharding is not None:
            keyed = rows.sharding.is_valid().to_numpy(zero_copy_only=False)[chosen]
            targets = np.where(keyed, np.abs(key_hashes(rows.sharding)[chosen]) % count, targets)
        for name in ("partition", "queueId"):
            if name in batch.schema.names:
                wanted = integers(batch, name)[chosen]
                given = batch.column(name).is_valid().to_numpy(zero_copy_only=False)[chosen]
                indices = {queue.queue_id: index for index, queue in reversed(list(enumerate(queues)))}
                for queue_id in np.unique(wanted[given]).tolist():
                    if queue_id not in indices:
                        raise InvalidMessage(
                            f"{name}: {queues[0].topic} has no writable queue {queue_id}", field=name
                        )
                    targets = np.where(given & (wanted == queue_id), indices[queue_id], targets)
        if "priority" in batch.schema.names:
            given = batch.column("priority").is_valid().to_numpy(zero_copy_only=False)[chosen]
            targets = np.where(
                given, _by_priority(queues, targets, integers(batch, "priority")[chosen]), targets
            )
        return targets


def _by_priority(
    queues: Sequence[MessageQueue], targets: npt.NDArray[np.int64], priorities: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each row, the queue of its priority, or the last one, of the broker of its target. A broker chooses it for
    single messages, but not for batches."""
    places = {(queue.broker_name, queue.queue_id): index for index, queue in enumerate(queues)}
    brokers = np.array([queue.broker_name for queue in queues])
    chosen = targets.copy()
    for name in np.unique(brokers).tolist():
        last = max(queue_id for broker, queue_id in places if broker == name)
        of_broker = np.array(
            [places.get((name, queue_id), places[name, last]) for queue_id in range(last + 1)]
        )
        there = brokers[targets] == name
        chosen[there] = of_broker[np.minimum(priorities[there], last)]
    return chosen


def integers(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    """A column of integers, 0 for null."""
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    filled: npt.NDArray[np.int64] = pc.fill_null(batch.column(name), 0).to_numpy().astype(np.int64)
    return filled
