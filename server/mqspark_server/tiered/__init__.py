"""Tiered reads: messages that the log no longer has are read from the table written by the job ``archive``.

A separate process reads the archive, so hanging storage or malicious Parquet can block or kill only that
process. Must not know the requests of clients.
"""
