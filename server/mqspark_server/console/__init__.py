"""The console: pages about a cluster for a browser.

Imported from outside: ``pages``, ``apidocs``, ``doors``, ``gateway``, ``clusteraccess``, ``history``. Must not know
a broker's core, which it asks over the wire.
"""
