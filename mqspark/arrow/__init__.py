"""Topics as Arrow, for programs without Spark: pandas, Polars, DuckDB and pyarrow itself.

    import mqspark.arrow

    reader = mqspark.arrow.read("127.0.0.1:9876", "Orders")       # a pyarrow.RecordBatchReader
    mqspark.arrow.write("127.0.0.1:9876", "Copies", reader)

``records`` and ``files`` know no cluster. ``pyspark_pymq`` is Spark's shell around these rooms. The names are loaded
when they are first used, and pyarrow with them: needs ``mqspark[arrow]``. Must not know Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqspark.arrow.reading.fromregistry import FromRegistry
    from mqspark.arrow.reading.lazyscan import scan
    from mqspark.arrow.reading.otherreads import dead_letters, lag, store
    from mqspark.arrow.reading.topicread import read
    from mqspark.arrow.writing.framewrite import write

__all__ = ["FromRegistry", "dead_letters", "lag", "read", "scan", "store", "write"]

_HOMES = {
    "FromRegistry": "reading.fromregistry",
    "dead_letters": "reading.otherreads",
    "lag": "reading.otherreads",
    "read": "reading.topicread",
    "scan": "reading.lazyscan",
    "store": "reading.otherreads",
    "write": "writing.framewrite",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("pyarrow", "numpy"):
            raise
        raise ImportError(f"mqspark.arrow.{name} needs {error.name}: pip install 'mqspark[arrow]'") from error
    globals()[name] = value
    return value
