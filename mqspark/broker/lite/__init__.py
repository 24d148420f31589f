"""Lite topics: light queues below a parent topic, each subscribed to by name.

Imported from outside: ``lite_service``, ``litenames``. Must not know the ``BrokerCore`` that registers its handlers.
"""
