"""A topic as a queue of work: functions on its messages, retries through the broker, dead letters.

Imported from outside: ``deadbodies``, ``verdicts``, ``workqueue``. Must not know how messages are decoded.
"""
