"""Puts and gets of messages, through log and queues.

Imported from outside: ``append``, ``commit``, ``condition``, ``fetch``, ``healing``, ``membertable``,
``unsettled``. Must not know recovery, checkpoints or retention.
"""
