"""Master and slave: copies of the log.

Imported from outside: ``follower``, ``replicas``, ``slave``. Must not know the sockets between them.
"""
