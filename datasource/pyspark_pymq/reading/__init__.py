"""Reads: batch, stream, by key, and of a store without a broker.

Imported from outside: ``keyread``, ``reader``, ``storeread``, ``stream``. Must not know writes.
"""
