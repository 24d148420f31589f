"""Spark jobs that do the store's heavy work: index rebuild, archive, compaction, redelivery.

Each job is a pure plan (computed from names, lengths and offsets alone) and its execution in Spark, idempotent
and resumable. ``mqspark_jobs.commandline.main`` runs them.
"""

__all__: list[str] = []
