"""Lite topics: light queues below a parent topic, each subscribed to by name.

Imported from outside: ``lite_service``. Must not know the ``BrokerCore`` that registers its handlers.
"""
