"""Master and slave: copies of the log.

Imported from outside: ``admission``, ``epochlink``, ``follower``, ``manager``, ``metadata``, ``replicas``,
``slave``, ``term``. Must not know the sockets between them.
"""
