"""Topics as Arrow: records decoded in bulk, the queues of a cluster read by range, in place or over TCP.

``records`` and ``files`` know no cluster. ``pyspark_pymq`` is Spark's shell around these rooms. This package imports
nothing, so pyarrow is loaded where something is decoded. Must not know Spark.
"""
