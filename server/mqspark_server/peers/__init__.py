"""Requests and notices from a broker, a name server or a controller to other servers.

Imported from outside: ``brokergroup``, ``escaping``, ``following``, ``notifier``, ``peerlink``, ``registrar``,
``routefinder``, ``schemafollower``. Must not know how a server is put together.
"""
