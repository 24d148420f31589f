"""Delayed messages: delay levels, timer messages, recall.

Imported from outside: ``delays``, ``recall``, ``timers``. Must not know sends and pulls.
"""
