"""Compacted queues, which the store serves instead of the log.

Imported from outside: ``compacted``, ``compactedend``, ``rocketcompaction``. Must not know the CommitLog
or the job that compacts.
"""
