"""The controller: which replica of each broker is master, and which replicas have everything.

Must not know sockets or an event loop.
"""
