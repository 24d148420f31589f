"""How a request reaches a broker: in the broker's own process, or before a cluster.

Imported from outside: ``brokerbackend``, ``clusterbackend``. Must not know calls.
"""
