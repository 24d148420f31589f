"""Writes: rows to queues, plainly or exactly once.

Imported from outside: ``pipeline``, ``sink``. Must not know reads.
"""
