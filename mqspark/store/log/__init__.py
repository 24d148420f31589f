"""The CommitLog: its segments, and reading runs of records.

Imported from outside: ``commitlog``, ``epochs``, ``logread``, ``logwindow``, ``opendamage``, ``record_tables``,
``scan``. Knows the disk. Must not know queues.
"""
