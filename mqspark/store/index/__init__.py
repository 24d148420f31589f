"""The index of messages by key.

Imported from outside: ``aheadkeys``, ``index``, ``indexer``, ``indexfile``, ``keys``. Knows the log and the disk. Must
not know the store.
"""
