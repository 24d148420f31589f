"""Transactions: half messages, decisions and checks.

Imported from outside: ``escaped_halves``, ``halfmessages``, ``transactions``. Must not know sends and pulls.
"""
