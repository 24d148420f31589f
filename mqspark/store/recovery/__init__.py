"""Opening a directory after a stop or crash, and rebuilding queues from the log or from the log of a master.

Imported from outside: ``copying``, ``deletions``, ``mending``, ``queueends``, ``rebuild``, ``recovery``,
``recoveryreport``, ``rocksdb``, ``scrub``, ``trustedlog``. Must not know the open store.
"""
