"""Background work of a running store: checkpoints and retention.

Imported from outside: ``archived``, ``checkpoints``, ``cleaning``. Must not know the store that runs it.
"""
