"""Record bytes to Arrow and Arrow to message bodies.

Imported from outside: ``arrowstream``, ``decode``, ``encode``, ``records``. Must not know a cluster or a Spark
session.
"""
