"""Writes: rows to queues, plainly or exactly once. Knows no read."""
