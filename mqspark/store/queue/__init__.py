"""ConsumeQueues of all kinds.

Knows the log and the disk. Must not know the index.
"""
