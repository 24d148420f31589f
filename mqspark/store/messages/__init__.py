"""Puts and gets of messages, through log and queues.

Must not know recovery, checkpoints or retention.
"""
