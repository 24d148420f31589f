"""ConsumeQueues of all kinds.

Imported from outside: ``batchqueue``, ``consumequeue``, ``delaylevels``, ``mapped``, ``multidispatch``, ``queueext``,
``queuetable``. Knows the log and the disk. Must not know the index.
"""
