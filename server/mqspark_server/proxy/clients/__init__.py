"""Who calls: the clients that are connected, what they hold, one call of theirs.

Must not know what is called.
"""
