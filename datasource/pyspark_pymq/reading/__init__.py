"""Reads: batch, stream, by key, and of a store without a broker.

Imported from outside: ``keyread``, ``batch``, ``storeread``, ``stream``. Must not know writes.
"""
