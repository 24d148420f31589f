"""Administration requests: queries and changes by tools.

Imported from outside: ``processors``, ``progress``, ``relays``, ``runtime``, ``views``. Must not know the
``BrokerCore`` that registers its handlers.
"""
