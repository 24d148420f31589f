"""Lite topics: light queues below a parent topic, each subscribed to by name.

Must not know the ``BrokerCore`` that registers its handlers.
"""
