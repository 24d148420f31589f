"""Storing what producers and consumers send.

Knows the state and the timers. Must not know pulls.
"""
