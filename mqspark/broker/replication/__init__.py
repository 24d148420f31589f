"""Master and slave: copies of the log.

Imported from outside: ``acting``, ``admission``, ``epochlink``, ``escape``, ``follower``, ``loghealing``, ``manager``,
``metadata``, ``preonline``, ``replicas``, ``rivals``, ``role``, ``tablenotices``, ``term``. Must not know the sockets
between them.
"""
