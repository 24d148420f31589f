"""Transactions: half messages, decisions and checks."""
