"""The console: pages about a cluster for a browser.

Must not know a broker's core, which it asks over the wire.
"""
