"""Ranges of queues to batches of rows: in place from a broker's files, or over TCP.

Imported from outside: ``lookout``, ``range_fetch``. Must not know Spark.
"""
