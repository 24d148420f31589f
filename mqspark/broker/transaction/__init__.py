"""Transactions: half messages, decisions and checks.

Must not know sends and pulls.
"""
