"""Reads: batch, stream, by key, and of a store without a broker.

Imported from outside: ``batch``, ``keyread``, ``source_progress``, ``storeread``, ``stream_offsets``, ``stream``. Must
not know writes.
"""
