"""State shared by the processors: connected clients, drafts, locks, answers held back.

Imported from outside: ``acks``, ``calls``, ``changes``, ``groups``, ``litenames``, ``selection``, ``slots``,
``state``, ``writer``. Must not know any processor.
"""
