"""Writes: rows to queues, plainly or exactly once.

Imported from outside: ``sink``. Must not know reads.
"""
