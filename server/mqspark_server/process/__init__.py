"""What every server's process has in common: its life, its disk work, its pauses.

Imported from outside: ``collector``, ``diskwork``, ``phases``, ``schemawork``, ``stalls``, ``startup``,
``tasks``. Must not know which server it is.
"""
