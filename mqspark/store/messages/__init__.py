"""Puts and gets of messages, through log and queues."""
