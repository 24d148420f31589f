"""Segments, small files and Delta logs on this host or at a URL.

Imported from outside: ``deltafiles``, ``locations``, ``logfiles``. Must not know a cluster.
"""
