"""Whether this Spark application has written to a topic before; if so, a write waits for an unreachable cluster.

The first contact of a write fails fast, because a wrong address is more common than an outage. Spark plans every
batch of a stream in a process that remembers nothing of the last one, so a file in the driver's scratch directory
does. Spark makes that directory, private to its user, for each application, and removes it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from mqspark.base.logs import escaping
from pyspark_pymq.options import WriteOptions

log = escaping("pyspark_pymq")

_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""Set by Spark in its Python processes, separated by commas."""


def has_written(options: WriteOptions) -> bool:
    marker = _marker(options)
    return marker is not None and marker.exists()


def note_written(options: WriteOptions) -> None:
    """Called on the driver when a batch is committed. Without a directory the next write checks its name server."""
    marker = _marker(options)
    if marker is None:
        return
    try:
        marker.touch()
    except OSError as error:
        log.info("the next write checks its name server again: %s", error)


def _marker(options: WriteOptions) -> Path | None:
    directories = os.environ.get(_DIRECTORIES)
    if not directories:
        return None
    target = f"{options.nameserver}\0{options.topic or ''}"
    digest = hashlib.sha256(target.encode()).hexdigest()[:32]
    return Path(directories.split(",")[0]) / f"mqspark-written-{digest}"
