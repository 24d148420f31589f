"""Record bytes to Arrow and Arrow to message bodies.

Must not know a cluster or a Spark session.
"""
