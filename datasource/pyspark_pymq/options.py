"""The options of a ``pymq`` source and sink, read and checked once.

Names are the Kafka source's where the meaning is equal (``subscribe``, ``subscribePattern``, ``assign``,
``startingOffsets``, ``failOnDataLoss``, ...). Keys are compared without case. Whatever is unknown, malformed or
contradictory raises ConfigError whose text begins with the option's name. Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqspark.arrow.cluster.queuechoice import RETRY_TIMEOUT_MS, Position, QueueChoice, StoreChoice
from mqspark.arrow.messagecolumns import STORE_COLUMNS, default_columns, named_columns
from mqspark.arrow.writing.sendchoice import BATCH_BYTES, LEAST_BATCH_BYTES, THRESHOLD_BYTES, SendChoice
from mqspark.base.config import told_of
from mqspark.errors import ConfigError
from mqspark.record.compression import LZ4, ZLIB, ZSTD, compressor
from pyspark_pymq.optiontexts import OptionTexts
from pyspark_pymq.payloadoptions import ARROW, DEADLETTER, RAW, PayloadOptions, payload_format

if TYPE_CHECKING:
    from mqspark.arrow.records.encode import Compression

_MAX_JOB = 200
_MAX_DELAY_MS = 15 * 60 * 1000
"""maxTriggerDelay of the Kafka source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(QueueChoice):
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    max_trigger_delay_ms: int
    """How long a batch with fewer than min_offsets_per_trigger rows may wait."""
    min_partitions: int | None
    max_partitions: int | None
    max_records_per_partition: int | None
    payload_is_arrow: bool
    """payloadFormat=arrow: a message is rows with columns of their own (``pyspark_pymq.typed.arrowrows``)."""
    payload: PayloadOptions | None
    """A message is a row with the fields of its body as columns (``pyspark_pymq.typed.typedcolumns``)."""
    poll_timeout_ms: int
    """How long an idle stream waits for a message before it reports to Spark that there is none."""
    has_spans: bool = False
    """openTelemetry: tasks make spans."""
    lineage_job: str | None = None
    """The job whose input the topics are (``pyspark_pymq.lineage``)."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        texts = OptionTexts(options)
        nameserver = texts.nameserver()
        topics = texts.topics()
        group = texts.group()
        starting = texts.offset_spec(
            "starting",
            Position.LATEST if streaming else Position.EARLIEST,
            allow_latest=streaming,
            group=group,
        )
        ending = texts.offset_spec("ending", Position.LATEST, allow_earliest=False)
        if streaming and (given := texts.given("ending")):
            raise ConfigError.of(given, "a stream has no end; it is an option of batch reads")
        strategy = texts.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        minimum, maximum = texts.positive("minPartitions"), texts.positive("maxPartitions")
        if minimum is not None and maximum is not None and minimum > maximum:
            raise ConfigError.of("minPartitions", f"{minimum} is more than maxPartitions={maximum}")
        parsed = cls(
            nameserver=nameserver,
            topics=topics,
            group=group,
            starting=starting,
            ending=ending,
            unmatched_timestamp_is_latest=strategy == "latest",
            max_offsets_per_trigger=texts.positive("maxOffsetsPerTrigger"),
            min_offsets_per_trigger=texts.positive("minOffsetsPerTrigger"),
            max_bytes_per_trigger=texts.bytes_size("maxBytesPerTrigger"),
            max_trigger_delay_ms=texts.duration_ms("maxTriggerDelay", _MAX_DELAY_MS),
            fail_on_data_loss=texts.flag("failOnDataLoss", True),
            limits=texts.inflate_limits(),
            tags=texts.tags(),
            sql_filter=texts.sql_filter(),
            keys=texts.keys(),
            archive=texts.text("archive") or None,
            min_partitions=minimum,
            max_partitions=maximum,
            max_records_per_partition=texts.positive("maxRecordsPerPartition"),
            local_read=texts.flag("localRead", True),
            local_directories=texts.directories("localDirectories"),
            payload_is_arrow=payload_format(texts) == ARROW,
            payload=PayloadOptions.parse(texts),
            retry_timeout_ms=texts.duration_ms("retryTimeout", RETRY_TIMEOUT_MS),
            poll_timeout_ms=texts.number("pollTimeoutMs", 250, lowest=0),
            signing=texts.signing(),
            has_spans=texts.flag("openTelemetry", False),
            lineage_job=_lineage_job(texts),
        )
        columns_of(options, texts)
        parsed._check(texts, streaming=streaming)
        texts.check_all_known("source")
        return parsed

    def _check(self, texts: OptionTexts, *, streaming: bool) -> None:
        if not streaming:
            for name in _TRIGGER_OPTIONS:
                if texts.is_given(name):
                    raise ConfigError.of(name, "only a stream has triggers")
        most, least = self.max_offsets_per_trigger, self.min_offsets_per_trigger
        if most is not None and least is not None and least > most:
            raise ConfigError.of("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger={most}")
        if texts.is_given("maxTriggerDelay") and least is None:
            raise ConfigError.of(
                "maxTriggerDelay", "limits the wait for minOffsetsPerTrigger; give that, too"
            )
        if self.sql_filter is not None and self.tags:
            raise ConfigError.of("sqlFilter", "contradicts tags; write TAGS IN ('A', 'B') in the filter")
        if self.payload_is_arrow:
            for name in ("columns", "includeProperties", "includeHeaders", "key"):
                if texts.is_given(name):
                    raise ConfigError.of(name, "rows of payloadFormat=arrow have their own columns")
        if self.payload is not None and self.payload.mode == DEADLETTER:
            if not streaming:
                raise ConfigError.of(
                    "mode",
                    f"{DEADLETTER} is of streams; each action of a batch read would send the letters again",
                )
            if self.group is None:
                raise ConfigError.of("mode", f"{DEADLETTER} needs the option group")
        if self.payload is not None and self.keys:
            raise ConfigError.of("key", "a look-up returns bodies; leave out payloadFormat")
        if self.keys:
            if streaming:
                raise ConfigError.of("key", "a look-up is a batch read; a stream has no end")
            if self.topics.pattern is not None or self.topics.assigned:
                raise ConfigError.of("key", "look-ups need the option topic")
            for name in ("tags", "sqlFilter", "archive", *_RANGE_OPTIONS):
                if texts.is_given(name):
                    raise ConfigError.of(name, "does not go together with key")
        if self.archive is not None and (self.sql_filter is not None or self.tags):
            raise ConfigError.of("archive", "filters are evaluated by brokers; filter on the columns")


_RANGE_OPTIONS = tuple(
    f"{which}{what}"
    for which in ("starting", "ending")
    for what in ("Offsets", "Timestamp", "OffsetsByTimestamp")
)
_TRIGGER_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay")


@dataclass(frozen=True, slots=True)
class StoreOptions(StoreChoice):
    """``option("store", ...)``: the records of a CommitLog, read without a broker."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> StoreOptions:
        texts = OptionTexts(options)
        if streaming:
            raise ConfigError.of(
                "store", "a directory is read in batches; a stream needs the option nameserver"
            )
        store = texts.text("store")
        if not store:
            raise ConfigError.of("store", "storePathRootDir, or the URL of a copy, is needed")
        given = texts.given_topics()
        topics = texts.topics().names if given else ()
        if given and not topics:
            raise ConfigError.of(given, "a store is read by topic names")
        end = texts.text("endingPosition")
        parsed = cls(
            log=texts.text("commitLog") or f"{store.rstrip('/')}/commitlog",
            topics=topics,
            broker=texts.text("broker") or "",
            starting_position=texts.number("startingPosition", 0, lowest=0),
            ending_position=None if end is None else texts.number("endingPosition", 0, lowest=0),
            fail_on_data_loss=texts.flag("failOnDataLoss", True),
            limits=texts.inflate_limits(),
        )
        columns_of(options, texts)
        texts.check_all_known("source of a store")
        return parsed


def _lineage_job(texts: OptionTexts) -> str | None:
    name = texts.text("lineageJob")
    if name is not None and not 0 < len(name) <= _MAX_JOB:
        raise ConfigError.of("lineageJob", f"a name of 1 to {_MAX_JOB} letters")
    return name


_KINDS = {"none": None, "zlib": ZLIB, "lz4": LZ4, "zstd": ZSTD}


def _compression(texts: OptionTexts) -> Compression | None:
    kind = _KINDS[texts.choice("compression", tuple(_KINDS), "none")]
    threshold = texts.bytes_size("compressionThreshold")
    if kind is None:
        if threshold is not None:
            raise ConfigError.of("compressionThreshold", "belongs to compression=zlib, lz4 or zstd")
        return None
    with told_of("compression"):
        compressor(kind)
    from mqspark.arrow.records.encode import (
        Compression,  # deferred: planning a write needs NumPy for nothing else
    )

    return Compression(kind, THRESHOLD_BYTES if threshold is None else threshold)


def _batch_bytes(texts: OptionTexts) -> int:
    size = texts.bytes_size("batchBytes") or BATCH_BYTES
    if size < LEAST_BATCH_BYTES:
        raise ConfigError.of("batchBytes", f"1k or more, not {texts.text('batchBytes')!r}")
    return size


def columns_of(options: Mapping[str, str], texts: OptionTexts | None = None) -> tuple[str, ...]:
    """The columns of a read without ``.schema(...)``. Raises ConfigError."""
    texts = texts or OptionTexts(options)
    asked = []
    if texts.flag("includeProperties", False):
        asked.append("properties")
    if texts.flag("includeHeaders", False):
        asked.append("headers")
    is_store = texts.text("store") is not None
    if is_store:
        asked += STORE_COLUMNS
    columns = default_columns(*asked)
    if not is_store and payload_format(texts) not in (RAW, ARROW):
        # A body that becomes columns is not one, too, unless it is named.
        columns = tuple(name for name in columns if name != "value")
    chosen = texts.text("columns")
    if chosen is None:
        return columns
    named = named_columns([part.strip() for part in chosen.split(",")], columns)
    return tuple(dict.fromkeys((*named, *(name for name in asked if name not in STORE_COLUMNS))))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(SendChoice):
    payload_is_arrow: bool
    """payloadFormat=arrow: rows are packed into messages with all their columns."""
    payload: PayloadOptions | None
    """The columns of a row that are not the message's become its body (``pyspark_pymq.typed.typedbodies``)."""
    transaction_id: str | None
    """Whose batches are written once; None: the streaming query's."""
    transaction_batch: int | None
    """The number of a batch write, which is written once."""
    has_spans: bool = False
    """openTelemetry: tasks make spans."""
    lineage_job: str | None = None
    """The job whose output the topic is (``pyspark_pymq.lineage``)."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        texts = OptionTexts(options)
        topic = texts.text("topic")
        if topic is not None:
            texts.check_topic("topic", topic)
        parsed = cls(
            nameserver=texts.nameserver(),
            topic=topic,
            group=texts.group() or "mqspark-spark-sink",
            batch_bytes=_batch_bytes(texts),
            compression=_compression(texts),
            send_timeout_ms=texts.number("sendTimeoutMs", 10_000, lowest=1),
            retry_timeout_ms=texts.duration_ms("retryTimeout", RETRY_TIMEOUT_MS),
            payload=PayloadOptions.parse_write(texts),
            payload_is_arrow=payload_format(texts) == ARROW,
            keep_broker_properties=texts.flag("keepBrokerProperties", False),
            as_dead_letters=texts.flag("asDeadLetters", False),
            exactly_once=texts.choice("deliveryGuarantee", ("at-least-once", "exactly-once"), "at-least-once")
            == "exactly-once",
            transaction_id=texts.text("transactionId") or None,
            transaction_batch=texts.number("transactionBatch", 0, lowest=0)
            if texts.is_given("transactionBatch")
            else None,
            signing=texts.signing(),
            has_spans=texts.flag("openTelemetry", False),
            lineage_job=_lineage_job(texts),
        )
        texts.check_all_known("sink")
        if parsed.lineage_job is not None and topic is None:
            raise ConfigError.of("lineageJob", "needs the option topic")
        for name in ("transactionId", "transactionBatch"):
            if texts.is_given(name) and not parsed.exactly_once:
                raise ConfigError.of(name, "belongs to deliveryGuarantee=exactly-once")
        return parsed
