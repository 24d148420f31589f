"""Typed topics: bodies of messages as columns of Spark, and columns as bodies.

Imported from outside: ``arrowrows``, ``typedbodies``, ``typedcolumns``. Must not know reads and writes.
"""
