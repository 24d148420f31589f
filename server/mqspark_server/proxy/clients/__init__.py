"""Who calls: the clients that are connected, what they hold, one call of theirs.

Imported from outside: ``grpccalls``, ``grpcclients``, ``grpchalves``, ``grpcmetadata``, ``renewals``. Must not know
what is called.
"""
