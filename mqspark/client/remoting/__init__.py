"""Connections to servers, and what the members of one identity share.

Imported from outside: ``blockingconnection``, ``channel``, ``client_options``, ``credentials``, ``ending``,
``filters``, ``indexwalk``, ``instance``, ``keywords``, ``lifecycle``, ``longanswers``, ``namespaces``, ``pauses``,
``pullanswers``, ``remoting``, ``tls``, ``topic_routes``. Must not know producers and consumers.
"""
