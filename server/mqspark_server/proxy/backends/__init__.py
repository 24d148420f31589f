"""How a request reaches a broker: in the broker's own process, or before a cluster.

Must not know calls.
"""
