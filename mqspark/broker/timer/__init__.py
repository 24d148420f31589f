"""Delayed messages: delay levels, timer messages, recall.

Must not know sends and pulls.
"""
