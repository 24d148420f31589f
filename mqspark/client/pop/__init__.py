"""The POP consumer: brokers hand out messages, and no member of the group owns a queue.

Must not know the other kinds of consumers.
"""
