"""Sockets around a core, and what their peers may make this process hold: memory, descriptors, connections.

Imported from outside: ``addresses``, ``descriptors``, ``durations``, ``lateness``, ``outbound``, ``slaveport``,
``tcp``, ``servertls``.
Must not know a request code.
"""
