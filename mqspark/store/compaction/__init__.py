"""Compacted queues: what the store serves in the place of the log."""
