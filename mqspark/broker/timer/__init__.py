"""Delayed messages: delay levels, timer messages, recall."""
