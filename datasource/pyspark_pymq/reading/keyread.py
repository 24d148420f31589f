"""``option("key", ...)``: the messages of a topic with certain keys, found by the brokers' index (QUERY_MESSAGE).

The newest messages of a key come first. RocketMQ searches by hash alone, so topics and keys are compared here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.client.blocking import BlockingClient
from mqspark.client.remoting.topic_routes import is_logic_broker
from mqspark.errors import ConfigError
from mqspark.message import has_key
from pyspark_pymq.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Lookup(InputPartition):  # type: ignore[misc]
    """All keys at one broker."""

    topics: tuple[str, ...]
    broker: str
    address: str


class KeyReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[Lookup]:
        cluster = ClusterQueues(self._options)
        try:
            brokers = {queue.broker_name: address for queue, address in cluster.queues().items()}
            if any(map(is_logic_broker, brokers)):
                raise ConfigError(
                    "key: a topic is static, and the brokers' index has the offsets of its physical queues; read it "
                    "without the option",
                    key="key",
                )
            return [Lookup(self._options.topics.names, name, brokers[name]) for name in sorted(brokers)]
        finally:
            cluster.client.close()

    def read(self, partition: Lookup | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Lookup):
            return
        from mqspark.arrow.records.decode import Decoder
        from mqspark.arrow.records.records import Records, record_positions, unwrap_inner_batches

        options = self._options
        client = BlockingClient(
            options.nameserver,
            retry_ms=options.retry_timeout_ms,
            credentials=options.signing.credentials(),
        )
        try:
            for topic in partition.topics:
                decoder = Decoder(
                    self._columns,
                    topic=topic,
                    broker=partition.broker,
                    queue_id=None,
                    strict=options.fail_on_data_loss,
                    limits=options.limits,
                )
                names_of = Decoder(
                    ("topic", "properties"), topic=None, broker=partition.broker, queue_id=None
                )
                seen: set[int] = set()
                pages = (
                    (key, page)
                    for key in dict.fromkeys(options.keys)
                    for page in client.messages_by_key(partition.address, topic, key)
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
                            if physical[index] not in seen
                            and topics[index] == topic
                            and has_key(properties, key)
                        ]
                        seen.update(physical[index] for index in kept)
                        if kept:
                            yield from decoder.batches(records, positions[kept])
        finally:
            client.close()


_PHYSICAL = 28
"""Where a record stores its physical offset."""
