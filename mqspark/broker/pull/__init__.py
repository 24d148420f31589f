"""Serving pulls and looking up messages.

Knows the state. Must not know sends.
"""
