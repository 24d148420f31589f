"""Serving pulls and looking up messages.

Imported from outside: ``lookups``, ``parked_pulls``, ``pull``, ``waiting_reads``. Knows the state. Must not
know sends.
"""
