"""What options mean on a cluster: brokers, ranges of queues, history, typed topics.

Imported from outside: ``history``, ``cluster_queues``, ``source_progress``, ``stream_offsets``, ``payload``,
``planning``. Must not know reads and writes.
"""
