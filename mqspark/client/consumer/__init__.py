"""The common part of all consumers: group membership, queue assignment and progress.

Imported from outside: ``allocate``, ``commits``, ``consumer``, ``inspection``, ``queuewatch``, ``settings``,
``subscriber``. Must not know which kind of consumer uses it.
"""
