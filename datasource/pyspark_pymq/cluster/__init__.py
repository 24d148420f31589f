"""What options mean on a cluster: brokers, ranges of queues, history, typed topics.

Imported from outside: ``history``, ``cluster_queues``, ``stream_offsets``, ``payload``, ``planning``. Must not know
reads and writes.
"""
