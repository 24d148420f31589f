"""Ranges of queues, look-ups by key and segments of a log to batches of rows: in place from files, or over TCP.

Imported from outside: ``fromregistry``, ``keyfetch``, ``lazyscan``, ``lookout``, ``otherreads``, ``range_fetch``,
``registrybodies``, ``segmentread``, ``topicread``. Must not know Spark.
"""
