"""Clients of consumer groups: heartbeats, memberships and queue locks.

Imported from outside: ``clients``. Must not know administration or replication.
"""
