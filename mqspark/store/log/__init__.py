"""The CommitLog: its segments, and reading runs of records.

Imported from outside: ``commitlog``, ``epochs``, ``logread``, ``opendamage``, ``record_tables``, ``scan``, ``stretch``.
Knows the disk. Must not know queues.
"""
