"""Clients of consumer groups: heartbeats, memberships and queue locks.

Imported from outside: ``membership``. Must not know administration or replication.
"""
