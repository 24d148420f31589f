"""The CommitLog: its segments, and reading runs of records.

Knows the disk. Must not know queues.
"""
