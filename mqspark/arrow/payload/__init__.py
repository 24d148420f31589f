"""Bodies of messages to typed columns, by schemas. Knows bytes, schemas and Arrow; no messages, no I/O.

Imported from outside: ``bodyrows``, ``jsonbodies``, ``avrobodies``, ``protobodies``, ``prefixedbodies``.
"""
