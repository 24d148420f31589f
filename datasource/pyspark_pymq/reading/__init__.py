"""Reads: batch, stream, by key, and of a store without a broker.

Must not know writes.
"""
