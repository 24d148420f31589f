"""Compacted queues, which the store serves instead of the log.

Must not know the CommitLog or the job that compacts.
"""
