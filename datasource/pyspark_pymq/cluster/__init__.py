"""What options mean on a cluster: brokers, ranges of queues, history, typed topics.

Imported from outside: ``archive``, ``cluster``, ``offsets``, ``payload``, ``planning``. Must not know reads and
writes.
"""
