"""What a store notes of itself beside the log: how far it is synced, where it begins, what was saved, whose it is.

Must not know the log.
"""
