"""Sockets around a core, and what their peers may make this process hold: memory, descriptors, connections.

``http2/`` and ``grpc/`` are the server's side of gRPC.

Imported from outside: ``addresses``, ``deadlines``, ``descriptors``, ``grpc``, ``guards``, ``handshakes``, ``httpget``,
``lateness``, ``localpeer``, ``memory_budget``, ``outbound``, ``servertls``, ``slaveport``, ``tcp``,
``testcertificate``.
Must not know a request code.
"""
