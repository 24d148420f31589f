"""Administration requests: queries and changes by tools.

Imported from outside: ``admin``, ``relays``, ``runtime``, ``views``. Must not know the ``Broker`` that registers its
handlers.
"""
