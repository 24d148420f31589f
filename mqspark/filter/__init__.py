"""Subscription filters: tags and SQL92 expressions.

Imported by brokers and clients. Must not know either of them.
"""
