"""Opening a directory after a stop or crash, and rebuilding queues from the log.

Imported from outside: ``deletions``, ``queueends``, ``rebuild``, ``recovery``, ``scrub``. Must not know the open
store.
"""
