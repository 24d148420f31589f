"""Sockets around a core, and what their peers may make this process hold: memory, descriptors, connections.

``http2/`` and ``grpc/`` are the server's side of gRPC.

Must not know a request code.
"""
