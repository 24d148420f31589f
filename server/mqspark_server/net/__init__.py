"""Sockets around a core, and what their peers may make this process hold: memory, descriptors, connections.

Imported from outside: ``addresses``, ``descriptors``, ``durations``, ``httpget``, ``lateness``, ``localpeer``,
``outbound``, ``servertls``, ``slaveport``, ``tcp``.
Must not know a request code.
"""
