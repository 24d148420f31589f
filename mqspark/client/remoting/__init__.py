"""Connections to servers, and what the members of one identity share.

Imported from outside: ``answers``, ``blockingconnection``, ``credentials``, ``filters``, ``identity``,
``instance``, ``keywords``, ``lifecycle``, ``namespaces``, ``pauses``, ``remoting``, ``tls``, ``topic_routes``.
Must not know producers and consumers.
"""
