"""The index of messages by key.

Knows the log and the disk. Must not know the store.
"""
