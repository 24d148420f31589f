"""Sockets around a core, and what their peers may make this process hold: memory, descriptors, connections.

Imported from outside: ``addresses``, ``descriptors``, ``durations``, ``httpget``, ``lateness``, ``localpeer``,
``opensockets``, ``outbound``, ``servertls``, ``slaveport``, ``tcp``, ``testcertificate``.
Must not know a request code.
"""
