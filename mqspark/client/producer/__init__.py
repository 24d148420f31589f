"""Producers: messages on their way to brokers.

Must not know consumers.
"""
