"""Producers: messages on their way to brokers.

Imported from outside: ``autobatch``, ``faults``, ``outgoing``, ``producer``, ``producer_settings``,
``send_window``, ``transaction``. Must not know consumers.
"""
