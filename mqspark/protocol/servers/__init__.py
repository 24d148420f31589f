"""What servers say to each other: registration at name servers, and the log between master and slave.

Imported from outside: ``autoswitch``, ``byid``, ``registration``, ``replicaproof``, ``replication``. Must not know
requests of clients.
"""
