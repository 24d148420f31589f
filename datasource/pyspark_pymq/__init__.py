"""``spark.read.format("pymq")``: RocketMQ topics as DataFrames, streams and sinks.

Installed, it needs no registration: Spark imports every top-level package named ``pyspark_*`` and takes its
``DefaultSource``. Two rules follow. This module stays import-light, for it is imported at the first ``format(...)`` of
any name; and importing it never raises, for then Spark would lose *every* Python data source of the environment. What
is missing is reported when the source is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

try:
    from pyspark_pymq.source import DefaultSource as DefaultSource
except ImportError:  # without pyspark there is nobody to offer a source to
    __all__ = ["register", "tuned_settings"]
else:
    __all__ = ["DefaultSource", "register", "tuned_settings"]


def register(spark: SparkSession) -> None:
    """Make ``format("pymq")`` known to this session: needed when the package came by ``--py-files``."""
    import os

    from pyspark_pymq.doctor import warn_of_mismatch
    from pyspark_pymq.source import DefaultSource

    root = os.path.dirname(os.path.dirname(__file__))
    context = getattr(spark, "_sc", None)  # none with Spark Connect
    warn_of_mismatch(getattr(context, "pythonExec", None))
    if context is not None and not os.path.isdir(root):
        # Of a zip: the runner of a stream, on the driver, looks for modules on PYTHONPATH and not in --py-files.
        paths = [root, *filter(None, context.environment.get("PYTHONPATH", "").split(os.pathsep))]
        context.environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    spark.dataSource.register(DefaultSource)


def tuned_settings(pyspark_version: str | None = None) -> dict[str, str]:
    """Session settings for fast micro-batches; see ``pyspark_pymq.tuning``.

    Warns when workers would run another Python than this process.
    """
    from pyspark_pymq.doctor import warn_of_mismatch
    from pyspark_pymq.tuning import tuned_settings as settings

    warn_of_mismatch()
    return settings(pyspark_version)


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        raise AttributeError("pyspark_pymq.DefaultSource needs pyspark: pip install 'mqspark[spark]'")
    raise AttributeError(f"module 'pyspark_pymq' has no attribute {name!r}")
