"""Bodies of messages to typed columns and back, by schemas.

Knows bytes, schemas and Arrow. Must not know messages.
"""
