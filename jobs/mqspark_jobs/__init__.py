"""Spark jobs that do the store's heavy work: index rebuild, compaction, delayed redelivery, archive.

Each will be a pure plan (what is to be done, from file lists and offsets alone) and a Spark execution of it, idempotent
and resumable. This version has none of them yet; the package is here so that its name and place are settled.
"""

__all__: list[str] = []
