"""State shared by the processors: connected clients, drafts, locks, answers held back.

Imported from outside: ``acks``, ``calls``, ``changes``, ``coldreads``, ``groups``, ``heldhalves``, ``locks``,
``selection``, ``slowreaders``, ``state``, ``writer``. Must not know any processor.
"""
