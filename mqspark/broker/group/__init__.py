"""Clients of a group: heartbeats, and what tools ask of live consumers."""
