"""What a read means on a cluster: brokers, ranges of queues, history, parts of static topics.

Imported from outside: ``batchplan``, ``cluster_queues``, ``history``, ``queuechoice``, ``queueranges``, ``readtasks``.
Must not know how ranges are read.
"""
