"""Administration requests: queries and changes by tools.

Must not know the ``BrokerCore`` that registers its handlers.
"""
