"""Storing what producers and consumers send.

Imported from outside: ``directsends``, ``fastfail``, ``replies``, ``retry``, ``send``. Knows the state and the timers.
Must not know pulls.
"""
