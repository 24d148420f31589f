"""The exactly-once sink: rows as half messages, made visible when the batch is committed.

    tasks     send their rows as half messages, which no consumer sees, and report their positions. A half message
              holds a whole batch of rows for one queue (``mqspark.broker.transaction.halfbatches``)
    decide    the driver writes Spark's choice (one attempt per partition) to the decision log. From then on the batch
              is decided; no crash changes it
    end       every chosen half message is committed, in the order of the rows; a repetition changes nothing
    show      the group offset of the decision log moves to this decision, where the next search begins

A batch that runs again (the driver died before Spark recorded it) finds its decision: its tasks send nothing, and its
driver commits what is not yet committed. If two drivers run one batch, the first decision in the log counts, and the
other driver rolls its own rows back. Half messages that no decision names (failed attempts, speculation) are never
visible.

Cost: the broker stores every row twice, compared with an at-least-once write. The tasks do the same work.

The sink requires an mqspark broker, where each transaction is decided once and may hold a batch. A RocketMQ broker
delivers a message twice when it is committed twice. Where decisions are kept, and whose count: ``decisionlog``.

Remaining risks without authentication: a client that guesses a ``transactionId`` can decide in its name, so choose an
unguessable one. A client that reads the half messages can end them in the name of their producer group, and so hide
rows or show them early. Any client can delete topics, or slow a search down with many messages under a query's hash.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mqspark.arrow.writing.pipeline import EXACTLY_ONCE, Pipeline, Send, send_header
from mqspark.arrow.writing.routing import Router
from mqspark.base.logs import Outages, escaping
from mqspark.client.blocking import BlockingClient
from mqspark.errors import ClientError, ConfigError, MQError, NoRoute
from mqspark.message import (
    PRODUCER_GROUP,
    TRANSACTION_BATCH,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_PREPARED,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    UNIQ_KEY,
    MessageQueue,
    decode_offset_id,
    encode_properties,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.headers.client_headers import EndTransactionRequestHeader, SendMessageResponseHeader
from pyspark_pymq.options import WriteOptions
from pyspark_pymq.writing.decisionlog import DecisionLog
from pyspark_pymq.writing.keptclient import KEPT
from pyspark_pymq.writing.reports import Half, Halves, Sent, Task

if TYPE_CHECKING:
    import pyarrow as pa

    from mqspark.arrow.records.encode import EncodedBatch

_COMMITTED_AT_ONCE_BYTES = 16 << 20
"""Approximate bytes of commits that a broker has to store before it gets more."""
_outages = Outages(escaping("pyspark_pymq"))
"""Outages that this driver sees: each batch looks again."""


class _HalfMessages:
    """The half messages of one task: their requests, and where they are stored."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._unique = secrets.token_hex(10).upper()
        self._count = 0
        self._places: dict[tuple[str, str], list[Half | None]] = {}

    def send_of(self, queue: MessageQueue, rows: EncodedBatch) -> Send:
        self._count += 1
        own = {
            UNIQ_KEY: f"{self._unique}{self._count:012X}",
            TRANSACTION_PREPARED: "true",
            PRODUCER_GROUP: self._options.group,
            TRANSACTION_BATCH: f"{rows.count}:{rows.sys_flag}",
        }
        properties = encode_properties(own).decode()
        header = send_header(self._options, queue, properties=properties, sys_flag=TRANSACTION_PREPARED_TYPE)
        places = self._places.setdefault((queue.topic, queue.broker_name), [])
        index = len(places)
        places.append(None)

        def stored(answer: Command) -> None:
            found = answer.header(SendMessageResponseHeader)
            _, _, position = decode_offset_id(found.msg_id)
            places[index] = found.queue_offset, position

        return Send(queue, RequestCode.SEND_MESSAGE_V2, header, rows.body, rows.count, stored)

    def stored(self) -> tuple[Halves, ...]:
        """All places, in the order of the rows. Raises MQError if one is missing."""
        halves = []
        for (topic, broker), places in sorted(self._places.items()):
            known = [place for place in places if place is not None]
            if len(known) != len(places):
                raise MQError(f"{len(places) - len(known)} half messages of {topic} were never answered")
            halves.append(Halves(topic, broker, known, self._options.group))
        return tuple(halves)


def prepare(
    options: WriteOptions,
    identity: str,
    number: int,
    batches: Iterable[pa.RecordBatch],
    *,
    first_turn: int,
    has_written: bool = False,
) -> Sent:
    """In a task: send rows as half messages, unless the batch is decided already; then Spark's rows are read and
    dropped."""
    from mqspark.arrow.records.encode import Rows

    with KEPT.lent(options) as client:
        router = Router(options, client, first_turn=first_turn, has_written=has_written)
        pipeline = Pipeline(options, client, router, EXACTLY_ONCE)
        halves = _HalfMessages(options)
        topic = options.topic or ""
        decided: bool | None = None
        for batch in batches:
            if decided or batch.num_rows == 0:
                continue
            rows = Rows(batch, options.keep_broker_properties)
            for queues, chosen, targets in router.placed(batch, rows):
                if decided is None:
                    topic = topic or queues[0].topic
                    check_brokers(client, topic)
                    decided = DecisionLog(client, identity, topic).find(number) is not None
                if decided:
                    break
                for index, each in rows.sends(chosen, targets, options.batch_bytes, options.compression):
                    pipeline.add(halves.send_of(queues[index], each))
            pipeline.throttle()
        pipeline.finish()
        return Sent(pipeline.messages, halves.stored(), Task(identity, number, topic) if topic else None)


def commit(options: WriteOptions, messages: Sequence[Sent]) -> None:
    """In the driver: decide, then commit every half message of the decision; all others are rolled back."""
    batches = {message.batch for message in messages if message.batch is not None}
    if not batches:
        return  # no rows
    batch = min(batches, key=lambda each: each.topic)
    own = [halves for message in messages for halves in message.prepared]
    with KEPT.lent(options) as client:
        decisions = DecisionLog(client, batch.identity, batch.topic)
        counts = decisions.find(batch.number)
        if counts is None:
            counts = decisions.decide(batch.number, own)
        end_all(client, options, counts, commit=True)
        shown = {(each.topic, each.broker, place) for each in counts for place in each.places}
        others = [
            Halves(each.topic, each.broker, rest, each.group)
            for each in own
            if (rest := [place for place in each.places if (each.topic, each.broker, place) not in shown])
        ]
        end_all(client, options, others, commit=False)
        decisions.show()


def check(options: WriteOptions) -> None:
    """In the driver, before the tasks run: log it if they will wait for the decision log."""
    with KEPT.lent(options) as client, client.without_retries():
        try:
            DecisionLog(client, "", options.topic or "").check()
            _outages.over(options.nameserver, "the decision log can be looked for again")
        except ClientError as error:
            _outages.failed(options.nameserver, None, "%s; the tasks try again", error)


def abort(options: WriteOptions, messages: Sequence[Sent]) -> None:
    """Roll back what was prepared, unless it is decided (Spark also aborts when the answer of a commit was lost)."""
    with KEPT.lent(options) as client:
        for message in messages:
            batch = message.batch
            if (
                batch is None
                or DecisionLog(client, batch.identity, batch.topic).find(batch.number) is not None
            ):
                continue
            end_all(client, options, message.prepared, commit=False)


def end_all(client: BlockingClient, options: WriteOptions, halves: Sequence[Halves], *, commit: bool) -> None:
    """Commit or roll back these half messages, in order. Decided ones do not change."""
    decision = TRANSACTION_COMMIT_TYPE if commit else TRANSACTION_ROLLBACK_TYPE
    addresses: dict[tuple[str, str], str] = {}
    at_once = max(1, _COMMITTED_AT_ONCE_BYTES // options.batch_bytes)
    for each in halves:
        key = (each.topic, each.broker)
        if key not in addresses:
            address = client.bridged(partial(_master, client, each.topic, each.broker))
            _check_broker(client, each.broker, address)
            addresses[key] = address
        for first in range(0, len(each.places), at_once):
            headers = [
                EndTransactionRequestHeader(
                    topic=each.topic,
                    producer_group=each.group,
                    tran_state_table_offset=offset,
                    commit_log_offset=position,
                    commit_or_rollback=decision,
                    # No immunity time, because the driver may come back at any time.
                    from_transaction_check=True,
                    msg_id="",
                    bname=each.broker,
                )
                for offset, position in each.places[first : first + at_once]
            ]
            client.request_all(addresses[key], RequestCode.END_TRANSACTION, headers)


def _master(client: BlockingClient, topic: str, broker: str) -> str:
    address = client.publish_route(topic).master(broker)
    if address is None:
        raise NoRoute(topic, f"broker {broker} has no address")
    return address


def check_brokers(client: BlockingClient, topic: str) -> None:
    """Raises ConfigError if a broker of the topic is not an mqspark broker."""
    route = client.publish_route(topic)
    for name in sorted({queue.broker_name for queue in route.publish_queues}):
        address = route.master(name)
        if address is not None:
            _check_broker(client, name, address)


def _check_broker(client: BlockingClient, name: str, address: str) -> None:
    if "mqsparkStoreNonce" not in client.runtime_info(address):
        raise ConfigError.of(
            "deliveryGuarantee", f"exactly-once needs mqspark brokers; {name} is another one"
        )
