"""What a read means on a cluster: brokers, ranges of queues, history, parts of static topics.

Must not know how ranges are read.
"""
