"""Transactions: half messages, decisions and checks.

Imported from outside: ``halfmessages``, ``transactions``. Must not know sends and pulls.
"""
