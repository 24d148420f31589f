"""Background work of a running store: checkpoints, retention, and the end of a copy that is taken back.

Must not know the store that runs it.
"""
