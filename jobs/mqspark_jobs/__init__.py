"""Spark jobs that do the store's heavy work: index rebuild, archive, compaction, redelivery.

Each is a pure plan (what is to be done, from names, lengths and offsets alone) and a Spark execution of it, idempotent
and resumable. ``mqspark_jobs.command.main`` runs them.
"""

__all__: list[str] = []
