"""The tables that a broker keeps in ``config/``: topics, groups, offsets, filters.

Imported from outside: ``attributes``, ``consumer_filters``, ``consumer_offsets``, ``offset_row``, ``ranges``,
``subscriptions``, ``topics``. Must not know who changes them.
"""
