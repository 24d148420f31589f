"""The state of several controllers in etcd, and which of them leads.

Imported from outside: ``client``, ``election``. Must not know what the state is, nor the requests of brokers.
"""
