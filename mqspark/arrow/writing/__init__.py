"""Rows of Arrow to queues: routed, encoded in bulk, sent, repeated until they are stored.

Must not know Spark or reads.
"""
