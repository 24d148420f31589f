"""The POP consumer: brokers hand out messages, and no member of the group owns a queue.

Imported from outside: ``pop``, ``popped``. Must not know the other kinds of consumers.
"""
