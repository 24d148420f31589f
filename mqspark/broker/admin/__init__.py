"""Administration requests: queries and changes by tools.

Imported from outside: ``processors``, ``relays``, ``runtime``, ``views``. Must not know the ``BrokerCore`` that
registers its handlers.
"""
