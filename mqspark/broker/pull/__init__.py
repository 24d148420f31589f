"""Serving pulls and looking up messages.

Imported from outside: ``lookups``, ``pull``. Knows the state. Must not know sends.
"""
