"""Rows of Arrow to queues: routed, encoded in bulk, sent, repeated until they are stored.

Imported from outside: ``framewrite``, ``pipeline``, ``routing``, ``rowcolumns``, ``sendchoice``, ``sendrows``. Must not
know Spark or reads.
"""
