"""``spark.read.format("pymq")``: RocketMQ topics as DataFrames, streams and sinks.

An installed package needs no registration: Spark imports every top-level package named ``pyspark_*`` and takes its
``DefaultSource``. Therefore this module must be light, because the first ``format(...)`` of any name imports it,
and its import must never raise, because Spark would then lose *every* Python data source of the environment.
Missing packages are reported when the source is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mqspark.client.remoting.credentials import Credentials
    from mqspark.client.remoting.tls import Tls
    from pyspark_pymq.observer import Observer

    # Pyright reads no ``__all__`` in a condition: ``as`` says that these are for users.
    from pyspark_pymq.reading.source_progress import SourceProgress as SourceProgress
    from pyspark_pymq.reading.source_progress import source_progress as source_progress
    from pyspark_pymq.work.verdicts import Discard as Discard
    from pyspark_pymq.work.verdicts import RetryAfter as RetryAfter
    from pyspark_pymq.work.workqueue import WorkQueue as WorkQueue

try:
    from pyspark_pymq.source import DefaultSource as DefaultSource
except ImportError:  # without pyspark there is no use for a source
    __all__ = ["observe", "register", "tuned_settings"]
else:
    __all__ = [
        "DefaultSource",
        "Discard",
        "RetryAfter",
        "SourceProgress",
        "WorkQueue",
        "observe",
        "register",
        "source_progress",
        "tuned_settings",
    ]


def register(spark: SparkSession) -> None:
    """Register ``format("pymq")`` with this session; needed when the package came with ``--py-files``."""
    import os

    from pyspark_pymq.doctor import warn_of_mismatch
    from pyspark_pymq.source import DefaultSource

    root = os.path.dirname(os.path.dirname(__file__))
    context = getattr(spark, "_sc", None)  # none with Spark Connect
    warn_of_mismatch(getattr(context, "pythonExec", None))
    if context is not None and not os.path.isdir(root):
        # With a zip: the runner of a stream, on the driver, searches PYTHONPATH and not --py-files.
        paths = [root, *filter(None, context.environment.get("PYTHONPATH", "").split(os.pathsep))]
        context.environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    spark.dataSource.register(DefaultSource)


def tuned_settings(pyspark_version: str | None = None) -> dict[str, Any]:
    """Session settings for fast micro-batches, which are texts; see ``pyspark_pymq.tuning``.

    Warns when workers would run another Python than this process.
    """
    from pyspark_pymq.doctor import warn_of_mismatch
    from pyspark_pymq.tuning import tuned_settings as settings

    warn_of_mismatch()
    return settings(pyspark_version)


def observe(
    spark: SparkSession,
    nameserver: str,
    *,
    topic: str = "mqspark_spark",
    credentials: Credentials | None = None,
    tls: Tls | None = None,
) -> Observer:
    """Publish the progress of this session's streaming queries in a topic, where the console shows them.

    It never delays a query: what cannot be published is dropped and counted. ``credentials`` and ``tls`` as of
    ``mqspark.Producer``. A missing topic is created with one queue. Stop the observer before the session.
    Raises ConfigError, InvalidMessage for a name that no topic can have.

    >>> observer = pyspark_pymq.observe(spark, "127.0.0.1:9876")
    """
    from pyspark_pymq.observer import Observer

    return Observer(spark, nameserver, topic, credentials, tls)


_LAZY = {
    "Discard": "pyspark_pymq.work.verdicts",
    "RetryAfter": "pyspark_pymq.work.verdicts",
    "SourceProgress": "pyspark_pymq.reading.source_progress",
    "source_progress": "pyspark_pymq.reading.source_progress",
    "WorkQueue": "pyspark_pymq.work.workqueue",
}
"""Loaded on first use."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name == "DefaultSource":
        raise AttributeError("pyspark_pymq.DefaultSource needs pyspark: pip install 'mqspark[spark]'")
    raise AttributeError(f"module 'pyspark_pymq' has no attribute {name!r}")
