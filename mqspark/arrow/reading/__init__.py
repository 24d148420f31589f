"""Ranges of queues, look-ups by key and segments of a log to batches of rows: in place from files, or over TCP.

Must not know Spark.
"""
