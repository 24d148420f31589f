"""Requests and notices from a broker, a name server or a controller to other servers.

Must not know how a server is put together.
"""
