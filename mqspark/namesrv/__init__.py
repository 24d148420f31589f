"""The name server: routes of topics, live brokers, and a small key-value table.

Must not know sockets or an event loop.
"""
