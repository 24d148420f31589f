"""Puts and gets of messages, through log and queues.

Imported from outside: ``append``, ``fetch``, ``healing``, ``membertable``. Must not know recovery, checkpoints or
retention.
"""
