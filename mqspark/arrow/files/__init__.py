"""Segments, small files and Delta logs on this host or at a URL.

Must not know a cluster.
"""
