"""The console: pages about a cluster for a browser.

Imported from outside: ``pages``, ``gateway``. Must not know a broker's core: it asks brokers over the wire.
"""
