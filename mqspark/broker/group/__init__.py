"""Clients of consumer groups: heartbeats, memberships and queue locks."""
