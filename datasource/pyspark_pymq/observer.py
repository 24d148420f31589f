"""``pyspark_pymq.observe(spark)``: a listener that publishes the progress of streaming queries, for the console.

A message is one event of one query, as JSON: ``event`` (started, progress, idle, terminated), ``id``, ``runId``,
``name``, ``app``, and ``progress`` as Spark has it. Its key is the query's id. Publishing never delays Spark: events
wait in a bounded queue for a separate thread. Events that find it full, or cannot be stored, are dropped and counted.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mqspark import AdminClient, Message, Producer
from mqspark.base.logs import Outages, escaping
from mqspark.client.remoting.credentials import Credentials
from mqspark.client.remoting.tls import Tls
from mqspark.errors import MQError, NoRoute
from mqspark.message import check_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_WAITING = 1_000
"""Limit of events that wait to be published."""
MAX_MESSAGE_BYTES = 64 * 1024
"""Limit of one message. A longer one loses its offsets, and then everything but its figures."""
IDLE_EVERY_S = 30.0
"""Interval of events of a query that waits for data."""
STOP_S = 5.0
_GROUP = "mqspark_spark"
_FIGURES = (
    "batchId",
    "numInputRows",
    "inputRowsPerSecond",
    "processedRowsPerSecond",
    "durationMs",
    "timestamp",
)

log = escaping("pyspark_pymq.observer")


class ProgressPublisher:
    """The queue and the thread behind it. ``send`` stores one message; ``prepare`` is called once before the first.

    What keeps events from being published costs a line when it begins and one when it is over.
    """

    def __init__(self, send: Callable[[Message], object], prepare: Callable[[], None], topic: str) -> None:
        self._send = send
        self._prepare = prepare
        self._topic = topic
        self._waiting: queue.Queue[tuple[str, bytes] | None] = queue.Queue(MAX_WAITING)
        self._outages = Outages(log)
        self._lock = threading.Lock()
        self.published = 0
        """Events that were stored."""
        self.dropped = 0
        """Events that were not."""
        self._thread = threading.Thread(target=self._run, name="mqspark-observer", daemon=True)
        self._thread.start()

    def publish(self, query_id: str, document: Mapping[str, Any]) -> None:
        """Returns at once."""
        try:
            self._waiting.put_nowait((query_id, _encoded(document)))
        except queue.Full:
            self._drop(f"{MAX_WAITING} events wait already")

    def stop(self) -> None:
        """Publish the waiting events, for at most STOP_S."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=STOP_S)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        is_prepared = False
        while (event := self._waiting.get()) is not None:
            query_id, body = event
            try:
                if not is_prepared:
                    self._prepare()
                    is_prepared = True
                self._send(Message.of(self._topic, body, keys=query_id))
            except (MQError, OSError) as error:
                self._drop(str(error))
            else:
                self.published += 1
                with self._lock:
                    self._outages.over(
                        "", "progress is published again; %d events are lost in all", self.dropped
                    )

    def _drop(self, reason: str) -> None:
        with self._lock:
            self.dropped += 1
            self._outages.failed("", None, "progress is not published: %s", reason)


def _encoded(document: Mapping[str, Any]) -> bytes:
    """The message, shortened to at most MAX_MESSAGE_BYTES."""
    body = json.dumps(document, default=str).encode()
    if len(body) <= MAX_MESSAGE_BYTES:
        return body
    progress = document.get("progress") or {}
    few = [
        {key: source.get(key) for key in ("description", "numInputRows")}
        for source in progress.get("sources", ())[:32]
        if isinstance(source, dict)
    ]
    figures = {key: progress.get(key) for key in _FIGURES}
    short = {key: str(value)[:1_000] for key, value in document.items() if key != "progress"}
    for sources in (few, []):
        body = json.dumps({**short, "progress": {**figures, "sources": sources}}, default=str).encode()
        if len(body) <= MAX_MESSAGE_BYTES:
            return body
    return json.dumps({**short, "progress": {}}, default=str).encode()


def document_of(kind: str, event: Any, app: str) -> dict[str, Any]:
    """The published form of an event of Spark's listener."""
    progress = getattr(event, "progress", None)
    about = progress if progress is not None else event
    document: dict[str, Any] = {
        "event": kind,
        "id": str(about.id),
        "runId": str(about.runId),
        "name": getattr(about, "name", None),
        "app": app,
    }
    if progress is not None:
        document["progress"] = json.loads(progress.json)
    if kind == "terminated":
        document["error"] = event.exception
    return document


class Observer:
    """Publishes until ``stop``. ``published`` and ``dropped`` count events."""

    def __init__(
        self,
        spark: SparkSession,
        nameserver: str,
        topic: str,
        credentials: Credentials | None,
        tls: Tls | None,
    ) -> None:
        from pyspark.sql.streaming.listener import StreamingQueryListener

        check_topic(topic)
        self._spark = spark
        app = spark.conf.get("spark.app.name", None) or ""
        self._producer = Producer(nameserver, group=_GROUP, credentials=credentials, tls=tls)
        self._producer.start()

        def prepare() -> None:
            """One queue, so that the events of all queries are in their order."""
            with AdminClient(nameserver, credentials=credentials, tls=tls) as admin:
                try:
                    admin.topic_route(topic)
                except NoRoute:
                    with contextlib.suppress(MQError):  # without the right to: brokers make topics themselves
                        admin.create_topic(topic, queues=1)

        publisher = self._publisher = ProgressPublisher(self._producer.send, prepare, topic)
        idle_s: dict[str, float] = {}

        class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
            def onQueryStarted(self, event: Any) -> None:
                publisher.publish(str(event.id), document_of("started", event, app))

            def onQueryProgress(self, event: Any) -> None:
                publisher.publish(str(event.progress.id), document_of("progress", event, app))

            def onQueryIdle(self, event: Any) -> None:
                now_s, query_id = time.monotonic(), str(event.id)
                if now_s - idle_s.get(query_id, float("-inf")) >= IDLE_EVERY_S:
                    idle_s[query_id] = now_s
                    publisher.publish(query_id, document_of("idle", event, app))

            def onQueryTerminated(self, event: Any) -> None:
                idle_s.pop(str(event.id), None)
                publisher.publish(str(event.id), document_of("terminated", event, app))

        self._listener = ProgressListener()
        spark.streams.addListener(self._listener)

    @property
    def published(self) -> int:
        """Events that are stored in the topic."""
        return self._publisher.published

    @property
    def dropped(self) -> int:
        """Events that are not: the cluster was away, or slower than the queries."""
        return self._publisher.dropped

    def stop(self) -> None:
        """Publish the waiting events, and stop observing."""
        self._spark.streams.removeListener(self._listener)
        self._publisher.stop()
        self._producer.stop()
