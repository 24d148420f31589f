"""Writes: rows to queues, plainly or exactly once.

Must not know reads.
"""
