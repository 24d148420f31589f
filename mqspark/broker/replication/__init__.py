"""Master and slave: copies of the log.

Imported from outside: ``follower``, ``metadata``, ``replicas``, ``slave``. Must not know the sockets between them.
"""
