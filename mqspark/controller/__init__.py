"""The controller: which replica of each broker is master, and which replicas are in sync.

Must not know sockets or an event loop.
"""
