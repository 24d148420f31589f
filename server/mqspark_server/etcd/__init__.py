"""The state of several controllers in etcd, and which of them leads.

Must not know what the state is, nor the requests of brokers.
"""
