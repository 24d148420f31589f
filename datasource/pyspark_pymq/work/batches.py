"""One micro-batch of a work queue: evaluated once, its failures sent back, its results handed on.

    evaluate    the function is called, and the outcome of every message is recorded
    complete    ``batch.json`` is written: from here on a batch that runs again evaluates nothing
    send back   dead letters to the dead-letter topic, failed messages to the retry topic
    hand on     the results to the sink, with the number of the batch

A crash after ``complete`` repeats the last two steps. Dead letters are written as transactions of the batch, so each is
stored once. A retry that may have been sent twice is recorded first, and its second copy is skipped when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqspark.arrow.signing import ENVIRONMENT, SigningOptions
from mqspark.base.clock import wall_ms
from mqspark.client.blocking import BlockingClient
from mqspark.message import retry_topic
from pyspark_pymq.work.journal import Journal, State
from pyspark_pymq.work.outcome import MESSAGE, NAMES, ORDER
from pyspark_pymq.work.retryqueues import Failed, SendBack, SendBackTimes, properties_of
from pyspark_pymq.work.trial import write_outcome
from pyspark_pymq.work.verdicts import DEAD, DISCARDED, DONE, ORDER_KEY, RETRY, RETRY_OF, WAIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class FailureTarget:
    """Where failures go."""

    nameserver: str
    group: str
    is_exact: bool
    """The brokers are mqspark's: dead letters are transactions."""
    retry_timeout_ms: int
    """How long brokers and name servers may be away before the query fails."""
    signing: SigningOptions = ENVIRONMENT
    write_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The options of the sink, for dead letters: what says the same as ``signing``, and ``openTelemetry``."""


@dataclass
class Batches:
    """What ``foreachBatch`` calls. ``evaluate(messages, is_careful, blocked)`` gives outcomes."""

    target: FailureTarget
    journal: Journal
    ordered_by: str | None
    evaluate: Callable[[DataFrame, bool, Mapping[str, str] | None], DataFrame]
    sink: Callable[[DataFrame, int, str], None] | None
    outcome_schema: Any
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """Outcomes of the last batches by kind, for the progress."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        spark = frame.sparkSession
        query = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        state = self.journal.state(batch)
        if state is None:
            state = self._evaluated(spark, frame, batch)
            is_repeated = False
        else:
            is_repeated = True
        outcome = self._outcome(spark, batch)
        if state.counts[DEAD] and outcome is not None:
            self._bury(outcome, query, batch)
        if state.counts[RETRY] and outcome is not None:
            self._send_back(outcome, query, batch, is_repeated)
        if self.sink is not None and outcome is not None:
            self.sink(
                outcome.where(f"kind = '{DONE}' AND result IS NOT NULL").select("result.*"), batch, query
            )
        self.journal.tidy(batch, state.waiting)
        self.counts[batch] = state.counts | {"blocked": len(state.blocked)}
        for old in [number for number in self.counts if number <= batch - 100]:
            del self.counts[old]

    # --- evaluate ---------------------------------------------------------------------------------------------

    def _evaluated(self, spark: SparkSession, frame: DataFrame, batch: int) -> State:
        before = self.journal.state_before(batch, wall_ms())
        messages = self._messages(frame)
        returned: set[str] = set()
        resent = before.resent
        if before.resent or before.blocked:
            messages, returned, resent = self._without_copies(messages, before.resent)
        blocked, waiting = None, before.waiting
        if self.ordered_by is not None:
            blocked = before.blocked
            if returned & set(blocked.values()) and waiting:
                messages = messages.unionByName(self._waiting(spark, waiting))
                waiting = []
            messages = messages.repartition("lane").sortWithinPartitions(
                "lane", "rank", "turn", "broker", "topic", "partition", "offset"
            )
        messages = messages.select(*NAMES, *ORDER)

        def evaluate(part: DataFrame, is_careful: bool) -> DataFrame:
            return self.evaluate(part, is_careful, blocked)

        write_outcome(self.journal, batch, messages, evaluate, self._poisoned)
        counts = dict.fromkeys((DONE, RETRY, DEAD, DISCARDED, WAIT), 0)
        now_blocked = {key: place for key, place in before.blocked.items() if place not in returned}
        outcome = self._outcome(spark, batch)
        if outcome is not None:
            from pyspark.sql import functions as f

            # Under a name of its own: a session may leave out what is grouped by (spark.sql.retainGroupColumns).
            sums = outcome.groupBy("kind").agg(f.min("kind").alias("what"), f.sum("count").alias("messages"))
            counts |= {row.what: int(row.messages) for row in sums.collect()}
            if self.ordered_by is not None and counts[RETRY]:
                rows = outcome.where(f"kind = '{RETRY}' AND orderKey IS NOT NULL")
                now_blocked |= {
                    row.orderKey: row.place for row in rows.select("orderKey", "message.place").collect()
                }
            if counts[WAIT]:
                waiting = [*waiting, batch]
        state = State(counts=counts, blocked=now_blocked, waiting=waiting, resent=resent)
        self.journal.complete(batch, state)
        return state

    def _messages(self, frame: DataFrame) -> DataFrame:
        """The source's rows as messages: a retry under the topic that its message was sent to."""
        from pyspark.sql import functions as f

        is_retry = f.col("topic") == retry_topic(self.target.group)
        properties = f.col("properties")
        nothing = f.lit(None).cast("string")
        key = {
            None: nothing,
            "key": f.col("key"),
            "queue": f.concat_ws(":", "broker", "topic", "partition"),
        }[self.ordered_by]
        kept = f.coalesce(properties.getItem(ORDER_KEY), key) if self.ordered_by else nothing
        computed = {
            "topic": f.when(is_retry, f.coalesce(properties.getItem("RETRY_TOPIC"), "topic")).otherwise(
                f.col("topic")
            ),
            "attempt": f.col("reconsumeTimes") + 1,
            "place": f.concat_ws(":", "broker", "topic", "partition", "offset"),
            "orderKey": f.when(is_retry, kept).otherwise(key),
            "retryOf": f.when(is_retry, properties.getItem(RETRY_OF)),
            "turn": f.lit(None).cast("bigint"),
        }
        rows = frame.select(
            *[computed[name].alias(name) if name in computed else name for name in (*MESSAGE, *ORDER)],
            f.when(is_retry, 0).otherwise(2).alias("rank"),
        )
        return rows.withColumn("lane", f.coalesce("orderKey", "place"))

    def _without_copies(
        self, messages: DataFrame, resent: Mapping[str, list[Any]]
    ) -> tuple[DataFrame, set[str], dict[str, list[Any]]]:
        """Drops second copies of retries that were sent twice. Also returns what the batch's retries are retries of."""
        rows = messages.where("retryOf IS NOT NULL").select("retryOf", "place").collect()
        now = {place: list(kept) for place, kept in resent.items()}
        copies, returned = [], set()
        for row in sorted(rows, key=lambda row: row.place):
            kept = now.get(row.retryOf)
            if kept is not None and kept[0]:
                copies.append(row.place)
                continue
            returned.add(row.retryOf)
            if kept is not None:
                kept[0] = True
        if copies:
            messages = messages.where(~messages.place.isin(copies))
        return messages, returned, now

    def _waiting(self, spark: SparkSession, batches: list[int]) -> DataFrame:
        """The messages that waited, in the shape of ``_messages``."""
        waiting: DataFrame | None = None
        for number in batches:
            outcome = self._outcome(spark, number)
            if outcome is None:
                continue
            part = outcome.where(f"kind = '{WAIT}'").selectExpr(
                "message.*",
                "orderKey",
                f"message.properties['{RETRY_OF}'] AS retryOf",
                f"coalesce(turn, {number}L) AS turn",
                "1 AS rank",
                "coalesce(orderKey, message.place) AS lane",
            )
            waiting = part if waiting is None else waiting.unionByName(part)
        if waiting is None:
            raise AssertionError("batches with waiting messages have outcomes")
        return waiting

    def _poisoned(self, messages: DataFrame, kind: str, text: str) -> DataFrame:
        from pyspark.sql.functions import lit, struct

        dead = messages.select(
            lit(DEAD).alias("kind"),
            lit(1).cast("bigint").alias("count"),
            lit(kind).alias("errorType"),
            lit(text).alias("errorText"),
            lit(None).cast("bigint").alias("delayMs"),
            struct(*NAMES).alias("message"),
            "orderKey",
            "turn",
        )
        if "result" in self.outcome_schema.fieldNames():
            dead = dead.withColumn("result", lit(None).cast(self.outcome_schema["result"].dataType))
        return dead

    def _outcome(self, spark: SparkSession, batch: int) -> DataFrame | None:
        urls = self.journal.outcome_urls(batch)
        return spark.read.schema(self.outcome_schema).parquet(*urls) if urls else None

    # --- send back --------------------------------------------------------------------------------------------

    def _failed(self, outcome: DataFrame, kind: str, query: str, batch: int) -> Iterator[Failed]:
        at_ms = wall_ms()
        columns = ("message", "errorType", "errorText", "delayMs", "orderKey")
        for row in outcome.where(f"kind = '{kind}'").select(*columns).toLocalIterator():
            yield Failed(
                row.message,
                row.errorType,
                row.errorText,
                row.delayMs,
                row.orderKey,
                query,
                batch,
                at_ms,
            )

    def _send_back(self, outcome: DataFrame, query: str, batch: int, is_repeated: bool) -> None:
        def may_come_twice(places: Any) -> None:
            self.journal.may_come_twice(batch, places)

        if is_repeated:
            rows = outcome.where(f"kind = '{RETRY}'").select("message.place").collect()
            may_come_twice([row.place for row in rows])
        client = BlockingClient(
            self.target.nameserver,
            retry_ms=self.target.retry_timeout_ms,
            credentials=self.target.signing.credentials(),
        )
        try:
            times = SendBackTimes(self.target.retry_timeout_ms)
            SendBack(client, self.target.group, times, may_come_twice).send(
                self._failed(outcome, RETRY, query, batch)
            )
        finally:
            client.close()

    def _bury(self, outcome: DataFrame, query: str, batch: int) -> None:
        """As retries that have had all their attempts, which brokers turn into dead letters."""
        from pyspark.sql.functions import udf
        from pyspark.sql.types import MapType, StringType

        at_ms = wall_ms()

        # Without annotations, which Spark would take for those of a pandas function.
        describe = udf(
            lambda message, kind, text: properties_of(
                Failed(message, kind, text, None, None, query, batch, at_ms)
            ),
            MapType(StringType(), StringType()),
        )
        dead = outcome.where(f"kind = '{DEAD}'").select(
            "message.key",
            "message.tags",
            "message.value",
            describe("message", "errorType", "errorText").alias("properties"),
        )
        writer = dead.write.format("pymq").option("nameserver", self.target.nameserver)
        writer = writer.options(**self.target.write_options)
        writer = writer.option("retryTimeout", f"{self.target.retry_timeout_ms}ms")
        writer = writer.option("topic", retry_topic(self.target.group)).option("asDeadLetters", "true")
        writer = writer.option("compression", "zlib")
        writer = writer.option("compressionThreshold", "1m").mode("append")
        # A dead letter says where it comes from, as those of brokers do.
        writer = writer.option("keepBrokerProperties", "true")
        if self.target.is_exact:
            writer = writer.option("deliveryGuarantee", "exactly-once")
            writer = writer.option("transactionId", f"{query}:dead").option("transactionBatch", batch)
        writer.save()
