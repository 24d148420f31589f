"""The common part of all consumers: group membership, queue assignment and progress.

Imported from outside: ``allocate``, ``commits``, ``consumer``, ``consumer_settings``, ``queuewatch``, ``running_info``,
``subscriber``. Must not know which kind of consumer uses it.
"""
