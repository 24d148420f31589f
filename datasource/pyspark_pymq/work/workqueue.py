"""A topic as a queue of work for Spark: a function is called for every message, and failed messages are retried.

    queue = WorkQueue(spark, nameserver="127.0.0.1:9876", topic="Orders", group="billing", max_attempts=5)
    query = queue.for_each(charge, checkpoint="/data/billing")

A message for which the function raises goes to the broker's retry topic of the group, waits there, and arrives again in
the same stream. After the last attempt it goes to the dead-letter topic, with the reason in its properties. It stops
neither the query nor the messages behind it, and successful messages are not repeated. The retries are RocketMQ's own:
other consumers of the group see them.

Spark's checkpoint records which messages were read, and the directory ``work`` beside it their outcomes
(``pyspark_pymq.work.journal``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mqspark.arrow.cluster.queuechoice import RETRY_TIMEOUT_MS
from mqspark.client.blocking import FIRST_CONTACT_MS, BlockingClient
from mqspark.errors import ConfigError, NoRoute
from mqspark.message import check_group, check_topic, dlq_topic, retry_topic
from pyspark_pymq.optiontexts import OptionTexts
from pyspark_pymq.schema import spark_schema
from pyspark_pymq.work.batches import Batches, FailureTarget
from pyspark_pymq.work.evaluate import Evaluation
from pyspark_pymq.work.functions import ERROR, ArrowFunction, RowFunction
from pyspark_pymq.work.journal import Journal
from pyspark_pymq.work.outcome import MESSAGE, outcome_columns
from pyspark_pymq.work.verdicts import DEAD, DONE, REASONS, RETRY, Policy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

_SOURCE = {name: kind for name, kind in MESSAGE.items() if name not in ("attempt", "place")} | {
    "reconsumeTimes": "int"
}
"""The columns that the source is asked for."""
_OURS = frozenset(
    {"nameserver", "topic", "topics", "subscribe", "topicpattern", "subscribepattern", "assign", "group"}
)
_SIGN_IN = frozenset({"accesskey", "secretkey", "securitytoken", "credentialsfile"})
_ROUTE_WAIT_S = 30.0

Sink = str | Callable[["DataFrame", int], None]
"""Where results go: a function of the results of a batch and its number, or the name of a topic."""


class WorkQuery:
    """The running query: Spark's StreamingQuery, whose progress also counts the outcomes of messages."""

    def __init__(self, query: StreamingQuery, counts: Mapping[int, Mapping[str, int]]) -> None:
        self._query = query
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """Spark's, with the key ``work``: how many messages were done, sent back (``retry``), given up (``dead``),
        discarded or began to wait in that batch, and how many keys are ``blocked``."""
        progress = self._query.lastProgress
        return None if progress is None else self._with_work(progress)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return [self._with_work(each) for each in self._query.recentProgress]

    def _with_work(self, progress: Mapping[str, Any]) -> dict[str, Any]:
        return {**progress, "work": dict(self._counts.get(progress["batchId"], {}))}


class WorkQueue:
    """The messages of one topic (or several, with commas) for one consumer group.

    ``max_attempts``: after so many a message is a dead letter. ``delays``: how long it waits after the first attempt,
    the second and so on (``"10s 1m 10m"``, or a list of texts or seconds; the last one repeats); without it RocketMQ's
    delay levels apply, 10 s, 30 s, 1 min and so on. ``ordered``: ``"key"`` or ``"queue"``: the messages of a key, or
    of a queue, wait behind one that failed, and others go on. Further options are those of the source, such as
    ``maxOffsetsPerTrigger`` and ``retryTimeout``; the writes of failed messages, dead letters and
    results follow the latter, too. ``startingOffsets`` is ``group`` unless it is given. Raises ConfigError.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        nameserver: str,
        topic: str,
        group: str,
        max_attempts: int = 16,
        delays: Sequence[float | str] | str | None = None,
        ordered: str | None = None,
        **options: str,
    ) -> None:
        if getattr(spark, "_sc", None) is None:
            raise ConfigError.of(
                "spark", "a work queue needs a session of its own process, not Spark Connect"
            )
        check_group(group)
        if ordered not in (None, "key", "queue"):
            raise ConfigError.of("ordered", f"'key', 'queue' or None, not {ordered!r:.80}")
        for name in options:
            if name.lower() in _OURS | {"payloadformat"}:
                raise ConfigError.of(name, "not an option of a work queue's source")
        topics = [name.strip() for name in topic.split(",") if name.strip()]
        for name in topics:
            check_topic(name)
        if not topics:
            raise ConfigError.of("topic", "no topic is named")
        self._spark = spark
        self._nameserver = nameserver
        self._topics = topics
        self._group = group
        self._policy = Policy.parse(max_attempts, delays)
        self._ordered = ordered
        self._options = options
        self._sign_in = {name: value for name, value in options.items() if name.lower() in _SIGN_IN}
        self._signing = OptionTexts(self._sign_in).signing()
        self._retry_timeout_ms = OptionTexts(options).duration_ms("retryTimeout", RETRY_TIMEOUT_MS)
        self._has_spans = OptionTexts(options).flag("openTelemetry", False)

    # --- what is done with a message --------------------------------------------------------------------------

    def for_each(
        self,
        function: Callable[[Any], Any],
        *,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> WorkQuery:
        """``function(message)`` is called with a Row of ``pyspark_pymq.work.outcome.MESSAGE``; what it returns is
        ignored. ``trigger``: the arguments of ``DataStreamWriter.trigger``."""
        return self._start(
            self._calls(RowFunction(function, None), None), None, None, checkpoint, trigger, name
        )

    def map(
        self,
        function: Callable[[Any], Any],
        schema: str | StructType,
        *,
        sink: Sink,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> WorkQuery:
        """``function(message)`` returns a dict, a Row or a tuple of the columns of ``schema``, or None for no result.

        ``sink``: a topic that the results are written to, exactly once on mqspark brokers, or ``sink(results, batch)``,
        called with a DataFrame and the number of the batch. That number is the same, and the results are the same, if
        the batch runs again after a crash: a sink that knows the numbers it has written repeats nothing."""
        results = _result_columns(schema)
        form = RowFunction(function, _arrow_struct(results))
        return self._start(self._calls(form, results), results, sink, checkpoint, trigger, name)

    def map_arrow(
        self,
        function: Callable[[pa.RecordBatch], Any],
        schema: str | StructType,
        *,
        sink: Sink,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> WorkQuery:
        """``function(batch)`` returns a RecordBatch or Table with the columns of ``schema``. A column ``error`` (text,
        null for success), a row for each message, says which messages failed. If the function raises, the halves of
        its batch are tried, so it should have no effects of its own."""
        if self._ordered is not None:
            raise ConfigError.of("ordered", "goes with for_each and map, which see one message at a time")
        results = _result_columns(schema)
        form = ArrowFunction(function, _arrow_struct(results))
        return self._start(self._calls(form, results), results, sink, checkpoint, trigger, name)

    def transform(
        self,
        function: Callable[[DataFrame], DataFrame],
        *,
        sink: Sink,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> WorkQuery:
        """``function(messages)`` returns a DataFrame with a column ``error`` (text, null for success), at most one row
        a message, and the column ``message`` of its input, which says which message a row is of. The other columns
        are the results."""
        if self._ordered is not None:
            raise ConfigError.of("ordered", "goes with for_each and map, which see one message at a time")
        results = self._results_of(function)
        policy = self._policy

        def evaluate(messages: DataFrame, is_careful: bool, blocked: Mapping[str, str] | None) -> DataFrame:
            return _outcome_of_frame(_with_message(messages), function, policy)

        return self._start(evaluate, results, sink, checkpoint, trigger, name)

    # --- dead letters -----------------------------------------------------------------------------------------

    def dead_letters(self) -> DataFrame:
        """The dead letters of the group: the messages, and their reasons. The job ``redeliver`` sends them again."""
        from pyspark.sql import functions as f

        self._make_topics()
        frame = self._spark.read.format("pymq").option("nameserver", self._nameserver)
        frame = frame.options(**self._sign_in)
        columns = ("key", "value", "tags", "offset", "timestamp", "broker", "msgId", "properties")
        frame = frame.schema(spark_schema(MESSAGE, columns)).load(dlq_topic(self._group))
        kind, text, attempt, query, batch, at_ms = (f.col("properties").getItem(name) for name in REASONS)
        origin, retried = (f.col("properties").getItem(name) for name in ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC"))
        # What another program wrote is null where it is no number, whatever spark.sql.ansi.enabled says.
        return frame.select(
            f.coalesce(origin, retried).alias("topic"),
            "key",
            "tags",
            "value",
            "msgId",
            kind.alias("errorType"),
            text.alias("errorText"),
            attempt.try_cast("int").alias("attempt"),
            query.alias("query"),
            batch.try_cast("bigint").alias("batch"),
            f.timestamp_millis(f.when(at_ms.rlike("^[0-9]{1,15}$"), at_ms).cast("bigint")).alias("failedAt"),
            "timestamp",
            "broker",
            "offset",
            "properties",
        )

    # --- the query --------------------------------------------------------------------------------------------

    def _calls(
        self, form: RowFunction | ArrowFunction, results: StructType | None
    ) -> Callable[[DataFrame, bool, Mapping[str, str] | None], DataFrame]:
        policy, group, has_spans = self._policy, self._group, self._has_spans

        def evaluate(messages: DataFrame, is_careful: bool, blocked: Mapping[str, str] | None) -> DataFrame:
            return messages.mapInArrow(
                Evaluation(form, policy, is_careful, blocked, group, has_spans), outcome_columns(results)
            )

        return evaluate

    def _start(
        self,
        evaluate: Callable[[DataFrame, bool, Mapping[str, str] | None], DataFrame],
        results: StructType | None,
        sink: Sink | None,
        checkpoint: str,
        trigger: Mapping[str, Any] | None,
        name: str | None,
    ) -> WorkQuery:
        is_exact = self._make_topics()
        batches = Batches(
            target=FailureTarget(
                self._nameserver,
                self._group,
                is_exact,
                self._retry_timeout_ms,
                self._signing,
                {**self._sign_in, "openTelemetry": str(self._has_spans).lower()},
            ),
            journal=Journal(checkpoint),
            ordered_by=self._ordered,
            evaluate=evaluate,
            sink=None if sink is None else self._sink(sink, is_exact),
            outcome_schema=outcome_columns(results),
        )
        source = self._spark.readStream.format("pymq").option("nameserver", self._nameserver)
        source = source.option("topic", ",".join([*self._topics, retry_topic(self._group)]))
        source = (
            source.option("group", self._group).option("startingOffsets", "group").options(**self._options)
        )
        frame = source.schema(spark_schema(_SOURCE)).load()
        writer = frame.writeStream.foreachBatch(batches).option("checkpointLocation", checkpoint)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        if name is not None:
            writer = writer.queryName(name)
        return WorkQuery(writer.start(), batches.counts)

    def _sink(self, sink: Sink, is_exact: bool) -> Callable[[DataFrame, int, str], None]:
        if not isinstance(sink, str):
            function = sink
            return lambda results, batch, query: function(results, batch)
        topic, nameserver = sink, self._nameserver
        options = {
            **self._sign_in,
            "retryTimeout": f"{self._retry_timeout_ms}ms",
            "openTelemetry": str(self._has_spans).lower(),
        }
        check_topic(topic)

        def write(results: DataFrame, batch: int, query: str) -> None:
            writer = results.write.format("pymq").option("nameserver", nameserver).option("topic", topic)
            writer = writer.options(**options)
            if is_exact:
                writer = writer.option("deliveryGuarantee", "exactly-once")
                writer = writer.option("transactionId", f"{query}:results").option("transactionBatch", batch)
            writer.mode("append").save()

        return write

    def _make_topics(self) -> bool:
        """Create the retry and the dead-letter topic of the group where the topics are, and wait until they are known.
        Returns whether all brokers are mqspark's."""
        client = BlockingClient(
            self._nameserver,
            first_contact_ms=FIRST_CONTACT_MS,
            credentials=self._signing.credentials(),
        )
        try:
            addresses: set[str] = set()
            for topic in self._topics:
                route = client.route(topic)
                masters = {route.master(name) for name in route.brokers}
                addresses |= {address for address in masters if address is not None}
            for topic in (retry_topic(self._group), dlq_topic(self._group)):
                client.make_topic(topic, sorted(addresses))
                _wait_for(client, topic)
            return all("mqsparkStoreNonce" in client.runtime_info(address) for address in addresses)
        finally:
            client.close()

    def _results_of(self, function: Callable[[DataFrame], DataFrame]) -> StructType:
        """The columns of the results, found by calling the function with no messages."""
        from pyspark.sql.types import StructType

        empty = self._spark.createDataFrame([], spark_schema(MESSAGE))
        returned = function(_with_message(empty))
        kinds = dict(returned.dtypes)
        for wanted, kind in ((ERROR, "string"), ("message", None)):
            if wanted not in kinds or kind not in (None, kinds[wanted]):
                raise ConfigError(
                    f"function: the DataFrame that it returns needs the column {wanted}"
                    + (f" of type {kind}" if kind else ", as it was given"),
                    key="function",
                )
        results = StructType([each for each in returned.schema if each.name not in (ERROR, "message")])
        if not results.fields:
            raise ConfigError.of("function", "the DataFrame that it returns has no columns of results")
        return results.toNullable()


def _wait_for(client: BlockingClient, topic: str) -> None:
    deadline = time.monotonic() + _ROUTE_WAIT_S
    while True:
        try:
            client.route(topic)
        except NoRoute:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _with_message(messages: DataFrame) -> DataFrame:
    from pyspark.sql.functions import struct

    return messages.withColumn("message", struct(*MESSAGE))


def _outcome_of_frame(
    messages: DataFrame, function: Callable[[DataFrame], DataFrame], policy: Policy
) -> DataFrame:
    from pyspark.sql import functions as f

    returned = function(messages.drop("orderKey", "retryOf", "turn"))
    failed = f.col(ERROR).isNotNull()
    attempt = f.col("message.attempt")
    delay = f.lit(None)
    if policy.delays_ms is not None:
        place = f.least(attempt, f.lit(len(policy.delays_ms)))
        delay = f.element_at(f.array(*map(f.lit, policy.delays_ms)), place)
    kind = f.when(~failed, DONE).when(attempt >= policy.max_attempts, DEAD).otherwise(RETRY)
    names = [name for name in returned.columns if name not in (ERROR, "message")]
    return returned.select(
        kind.alias("kind"),
        f.lit(1).cast("bigint").alias("count"),
        f.when(failed, "Error").alias("errorType"),
        f.translate(f.substring(ERROR, 1, 1000), "\x01\x02", "??").alias("errorText"),
        f.when(failed, delay.cast("bigint")).alias("delayMs"),
        f.when(failed, f.col("message")).alias("message"),
        f.lit(None).cast("string").alias("orderKey"),
        f.lit(None).cast("bigint").alias("turn"),
        f.when(~failed, f.struct(*names)).alias("result"),
    )


def _result_columns(schema: str | StructType) -> StructType:
    """The user's text means what the session's settings say: it is read once, here."""
    from pyspark.sql.types import StructType

    return (StructType.fromDDL(schema) if isinstance(schema, str) else schema).toNullable()


def _arrow_struct(results: StructType) -> pa.StructType:
    """The columns of results. Raises ConfigError."""
    import pyarrow

    from pyspark_pymq.typed.arrowrows import arrow_schema_of

    return pyarrow.struct(list(arrow_schema_of(results)))
