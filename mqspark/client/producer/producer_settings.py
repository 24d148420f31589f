"""Settings of a producer. Facts: RocketMQ's DefaultMQProducer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mqspark.base.valuetypes import InRange, NonNegativeInt, PositiveInt, check_fields
from mqspark.client.hooks.hooks import Interceptor
from mqspark.client.life.ending import EXIT_TIMEOUT_MS
from mqspark.client.producer.accumulator import AutoBatch
from mqspark.client.remoting.client_options import ClientKeywords
from mqspark.client.remoting.keywords import described
from mqspark.client.typed.serializer import Serializer
from mqspark.message import CLIENT_TOPIC_QUEUES


@described
@dataclass(frozen=True, kw_only=True)
class ProducerSettings:
    """What one producer does, blocking or not; ``ClientOptions`` has what it shares with others.

    ``Producer(..., settings=ProducerSettings(retries=0))`` and ``Producer(..., retries=0)`` mean the same. Raises
    ConfigError for a value that is out of range.
    """

    send_timeout_ms: PositiveInt = 3_000
    """The limit of a whole send, including its retries and connecting."""
    retries: NonNegativeInt = 2
    """Further attempts after one that failed or that the broker refused for the moment, on other brokers where there
    are any. Sends to a queue that the caller chose are not retried."""
    attempt_timeout_ms: PositiveInt | None = None
    """The limit of one attempt while another may follow, so that a silent broker leaves time for the next one. None: an
    attempt may take all the time of the send, as in RocketMQ. An attempt that was given up may have stored the
    message."""
    compress_from_bytes: NonNegativeInt = 4_096
    """Bodies of at least this size are compressed by zlib, if that makes them smaller."""
    compress_level: Annotated[int, InRange(0, 9)] = 5
    """The level of zlib: 1 is the fastest, 9 makes the smallest bodies."""
    max_message_bytes: PositiveInt = 4 * 1024 * 1024
    """A larger body is refused with MessageTooLarge before it is sent; brokers have a limit of their own."""
    default_topic_queues: PositiveInt = CLIENT_TOPIC_QUEUES
    """The number of queues, on each broker, of a topic that a send creates."""
    max_in_flight: PositiveInt = 1_024
    """Sends wait while this many are unanswered."""
    max_in_flight_bytes: PositiveInt = 100 * 1024 * 1024
    """Sends wait while the bodies of unanswered sends exceed this size."""
    exit_timeout_ms: NonNegativeInt = EXIT_TIMEOUT_MS
    """How long the end of a program that has not stopped the producer waits for its messages; 0: not at all. The log
    says what is lost."""
    auto_batch: AutoBatch | None = None
    """Combine single messages into batches, with a small delay; None: send each alone."""
    interceptors: Sequence[Interceptor] = ()
    """The program's own code around each send, called in this order."""
    trace: bool = False
    """Record each acknowledged send, for ``mqadmin queryMsgTraceById``."""
    trace_topic: str | None = None
    """Where to record; None: RMQ_SYS_TRACE_TOPIC."""
    serializer: Serializer | None = None
    """Makes the bodies of messages with a value (``Message.of(topic, value=...)``); None: they are refused."""

    def __post_init__(self) -> None:
        check_fields(self)


class ProducerKeywords(ClientKeywords, total=False):
    """The fields of ``ProducerSettings`` and ``ClientOptions``, as keywords."""

    send_timeout_ms: int
    retries: int
    attempt_timeout_ms: int | None
    compress_from_bytes: int
    compress_level: int
    max_message_bytes: int
    default_topic_queues: int
    max_in_flight: int
    max_in_flight_bytes: int
    exit_timeout_ms: int
    auto_batch: AutoBatch | None
    interceptors: Sequence[Interceptor]
    trace: bool
    trace_topic: str | None
    serializer: Serializer | None
