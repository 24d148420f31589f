"""Opening a directory after a stop or crash, and rebuilding queues from the log or from the log of a master.

Must not know the open store.
"""
