"""State shared by the processors: tables kept in ``config/``, connected clients, drafts, held answers, counters.

Imported from outside: ``acks``, ``attributes``, ``calls``, ``changes``, ``coldreads``, ``consumer_filters``,
``consumer_offsets``, ``groups``, ``heldhalves``, ``histogram``, ``locks``, ``meters``, ``ranges``, ``rpctimes``,
``selection``, ``slowreaders``, ``state``, ``stats``, ``subscriptions``, ``topics``, ``writer``. Must not know any
processor.
"""
