"""Events of OpenLineage: which topics a job reads, and what it writes.

Off unless the environment says where events go (``OPENLINEAGE_URL``, ``OPENLINEAGE_CONFIG`` or
``OPENLINEAGE__TRANSPORT__...``, as for every job with OpenLineage's client); needs ``mqspark[lineage]``. A thread sends
them, of at most ``MAX_WAITING``; what cannot be sent is dropped, and one warning says so. A job never fails because of
them, and waits at its end for at most ``_LAST_WAIT_S``.

A topic is the dataset ``rocketmq://HOST:PORT``, ``TOPIC``, the first of the name servers in order, whoever names it. A
table is ``file``, ``/path``, or ``s3://bucket``, ``path``. Must not import pyspark.
"""

from __future__ import annotations

import atexit
import datetime
import os
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from mqspark.arrow.files.locations import is_remote, local_path
from mqspark.base.config import parse_addresses
from mqspark.base.logs import sparing
from mqspark.errors import InvalidSchema
from mqspark.schemas.parsing import parse
from mqspark.schemas.topfields import fields_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = sparing(__name__)

MAX_WAITING = 256
_LAST_WAIT_S = 2.0
_MAX_TEXT = 4_000
_MAX_FIELDS = 1_000
_PRODUCER = "https://pypi.org/project/mqspark"
_WHERE = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_SETTINGS = "OPENLINEAGE_"
_TRANSPORT = "OPENLINEAGE__TRANSPORT"
BATCH, STREAMING = "BATCH", "STREAMING"
START, RUNNING, COMPLETE, FAIL, ABORT = "START", "RUNNING", "COMPLETE", "FAIL", "ABORT"


class Dataset(NamedTuple):
    namespace: str
    name: str
    fields: tuple[tuple[str, str], ...] = ()
    """Columns and their types."""


def topic_dataset(nameserver: str, topic: str, schema: StructType | None = None) -> Dataset:
    first = min(parse_addresses(nameserver, key="nameserver", required=True))
    return Dataset(f"rocketmq://{first}", topic, _fields(schema))


def table_dataset(url: str, schema: StructType | None = None) -> Dataset:
    if not is_remote(url):
        return Dataset("file", os.path.abspath(local_path(url)), _fields(schema))
    parts = urlsplit(url)
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    return Dataset(f"{scheme}://{parts.netloc}", parts.path.strip("/") or "/", _fields(schema))


def _fields(schema: StructType | None) -> tuple[tuple[str, str], ...]:
    if schema is None:
        return ()
    return tuple((each.name, each.dataType.simpleString()) for each in schema.fields[:_MAX_FIELDS])


def tell_of_task(job: str, nameserver: str, *, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> None:
    """What the source and the sink of an application say (option ``lineageJob``), once in a process for each topic. All
    of them speak of one run, so that their topics are the inputs and outputs of one job."""
    if not is_configured():
        return
    new = [(job, topic, is_read) for is_read, topics in ((True, reads), (False, writes)) for topic in topics]
    if all(each in _told for each in new) or len(_told) > MAX_WAITING:
        return
    _told.update(new)
    inputs, outputs = ([topic_dataset(nameserver, topic) for topic in topics] for topics in (reads, writes))
    # Spark gives its Python processes on the driver one directory of the application.
    application = os.environ.get("SPARK_LOCAL_DIRS") or str(os.getppid())
    run_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{_PRODUCER}/{job}/{application}")
    LineageRun(job, inputs, outputs, run_id=str(run_id)).tell(RUNNING)
    shared_sender().flush(_LAST_WAIT_S)  # Spark ends these processes without a word


def tell_of_schema(nameserver: str, topic: str, kind: str, text: str) -> None:
    """A schema was registered for the bodies of a topic: what it says of the topic's fields. One that needs others says
    none."""
    if not is_configured():
        return
    try:
        fields = tuple(fields_of(parse(kind, text))[:_MAX_FIELDS])
    except InvalidSchema:
        fields = ()
    shared_sender().put(
        _Event("", _Statement(topic_dataset(nameserver, topic)._replace(fields=fields)), _now(), "")
    )
    shared_sender().flush(_LAST_WAIT_S)


@contextmanager
def lineage_of(job: str, inputs: Sequence[Dataset], outputs: Sequence[Dataset]) -> Iterator[None]:
    """A run that ends with the ``with``."""
    run = LineageRun(job, inputs, outputs, processing=BATCH)
    run.tell(START)
    try:
        yield
    except BaseException as error:
        run.tell(FAIL, f"{type(error).__name__}: {error}")
        raise
    run.tell(COMPLETE)


def is_configured(environment: Mapping[str, str] = os.environ) -> bool:
    if environment.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    return any(environment.get(name) for name in _WHERE) or any(
        name.startswith(_TRANSPORT) for name in environment
    )


class LineageRun:
    """A run of a job. Without a configuration its events go nowhere."""

    def __init__(
        self,
        job: str,
        inputs: Sequence[Dataset],
        outputs: Sequence[Dataset],
        *,
        processing: str = STREAMING,
        run_id: str | None = None,
        sender: LineageSender | None = None,
    ) -> None:
        self._job = job
        self._inputs, self._outputs = inputs, outputs
        self._processing = processing
        self._run_id = run_id or str(uuid.uuid4())
        self._sender = sender or (shared_sender() if is_configured() else None)

    def tell(self, event: str, error: str = "") -> None:
        """``event``: START, RUNNING, COMPLETE, FAIL (with an error) or ABORT."""
        if self._sender is not None:
            self._sender.put(_Event(event, self, _now(), error[:_MAX_TEXT]))

    def made(self, event: _Event) -> Any:
        """The event as the client sends it."""
        from openlineage.client import event_v2
        from openlineage.client.facet_v2 import error_message_run, job_type_job

        facets: dict[str, Any] = {}
        if event.error:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(event.error, "Python")
        kind = job_type_job.JobTypeJobFacet(self._processing, "MQSPARK", "JOB")
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "mqspark"
        return event_v2.RunEvent(
            eventType=getattr(event_v2.RunState, event.kind),
            eventTime=event.time,
            producer=_PRODUCER,
            run=event_v2.Run(self._run_id, facets=facets),
            job=event_v2.Job(namespace, self._job, facets={"jobType": kind}),
            inputs=[
                event_v2.InputDataset(each.namespace, each.name, facets=_facets(each))
                for each in self._inputs
            ],
            outputs=[
                event_v2.OutputDataset(each.namespace, each.name, facets=_facets(each))
                for each in self._outputs
            ],
        )


def _facets(dataset: Dataset) -> dict[str, Any]:
    from openlineage.client.facet_v2 import schema_dataset

    if not dataset.fields:
        return {}
    fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in dataset.fields]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields)}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


class _Statement:
    """What is known of a dataset, without a run."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def made(self, event: _Event) -> Any:
        from openlineage.client import event_v2

        found = self._dataset
        dataset = event_v2.StaticDataset(found.namespace, found.name, facets=_facets(found))
        return event_v2.DatasetEvent(eventTime=event.time, producer=_PRODUCER, dataset=dataset)


class _Event(NamedTuple):
    kind: str
    run: LineageRun | _Statement
    time: str
    error: str


class LineageSender:
    """Sends events in their order."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[_Event] = queue.Queue(MAX_WAITING)
        self._has_warned = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, event: _Event) -> None:
        """Never waits and never raises."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="lineage", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._warn(f"more than {MAX_WAITING} wait")

    def flush(self, seconds: float) -> bool:
        """Waits until all events have been sent or dropped, but no longer."""
        until = time.monotonic() + seconds
        with self._waiting.all_tasks_done:
            while self._waiting.unfinished_tasks:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._waiting.all_tasks_done.wait(left)
        return True

    def _send(self) -> None:
        client: Any = None
        settings: dict[str, str] = {}
        while True:
            event = self._waiting.get()
            try:
                now = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
                if client is None or settings != now:
                    from openlineage.client import OpenLineageClient

                    client, settings = OpenLineageClient(), now
                client.emit(event.run.made(event))
            except Exception as error:
                # The package is missing, or its transport or the network fails: no job fails for that.
                self._warn(f"{type(error).__name__}: {error}")
            finally:
                self._waiting.task_done()

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("events of OpenLineage are dropped (%s); this is said once", why[:_MAX_TEXT])


_told: set[tuple[str, str, bool]] = set()
_made: list[LineageSender] = []
"""The one of this process."""


def shared_sender() -> LineageSender:
    if not _made:
        sender = LineageSender()
        _made.append(sender)
        atexit.register(sender.flush, _LAST_WAIT_S)
    return _made[0]
