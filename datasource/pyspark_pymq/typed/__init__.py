"""Typed topics: bodies of messages as columns of Spark, and columns as bodies.

Must not know reads and writes.
"""
