"""The messages of topics with certain keys, found by the brokers' index (QUERY_MESSAGE).

The newest messages of a key come first. RocketMQ searches by hash alone, so topics and keys are compared here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.arrow.cluster.queuechoice import QueueChoice
from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.topic_routes import is_logic_broker
from mqspark.errors import ConfigError
from mqspark.message import has_key

if TYPE_CHECKING:
    import pyarrow as pa

_PHYSICAL = 28
"""Where a record stores its physical offset."""


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """All keys at one broker."""

    topics: tuple[str, ...]
    broker: str
    address: str


def plan_lookups(cluster: ClusterQueues, choice: QueueChoice) -> list[KeyLookup]:
    """Raises ConfigError for a static topic."""
    brokers = {queue.broker_name: address for queue, address in cluster.queues().items()}
    if any(map(is_logic_broker, brokers)):
        raise ConfigError.of(
            "key",
            "a topic is static, and the brokers' index has the offsets of its physical queues; read it "
            "without the option",
        )
    return [KeyLookup(choice.topics.names, name, brokers[name]) for name in sorted(brokers)]


def read_lookup(lookup: KeyLookup, choice: QueueChoice, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    from mqspark.arrow.records.decode import Decoder
    from mqspark.arrow.records.records import Records, record_positions, unwrap_inner_batches

    client = BlockingClient(
        choice.nameserver,
        retry_ms=choice.retry_timeout_ms,
        credentials=choice.signing.credentials(),
    )
    try:
        for topic in lookup.topics:
            decoder = Decoder(
                columns,
                topic=topic,
                broker=lookup.broker,
                queue_id=None,
                strict=choice.fail_on_data_loss,
                limits=choice.limits,
            )
            names_of = Decoder(("topic", "properties"), topic=None, broker=lookup.broker, queue_id=None)
            seen: set[int] = set()
            pages = (
                (key, page)
                for key in dict.fromkeys(choice.keys)
                for page in client.messages_by_key(lookup.address, topic, key)
            )
            for key, page in pages:
                found = Records(page)
                for records, positions in unwrap_inner_batches(
                    found, record_positions(found), strict=decoder.strict, limits=decoder.limits
                ):
                    names = names_of(records, positions)
                    topics = names.column("topic").to_pylist()
                    maps = names.column("properties").to_pylist(maps_as_pydicts="strict")
                    physical = records.longs(positions + _PHYSICAL).tolist()
                    kept = [
                        index
                        for index, properties in enumerate(maps)
                        if physical[index] not in seen and topics[index] == topic and has_key(properties, key)
                    ]
                    seen.update(physical[index] for index in kept)
                    if kept:
                        yield from decoder.batches(records, positions[kept])
    finally:
        client.close()
