"""Compacted queues, which the store serves instead of the log."""
