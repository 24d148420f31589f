"""Clients of consumer groups: heartbeats, memberships and queue locks.

Must not know administration or replication.
"""
