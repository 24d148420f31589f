"""A topic as a queue of work: functions on its messages, retries through the broker, dead letters.

Must not know how messages are decoded.
"""
