"""Producers: messages on their way to brokers.

Imported from outside: ``autobatch``, ``outgoing``, ``producer``, ``send_window``, ``settings``, ``transaction``. Must
not know consumers.
"""
