"""Bodies as people read them: JSON, Avro, Protobuf, MessagePack, Arrow, text or bytes, with or without saying which.

Anybody may have sent a body, so each of these is bounded: what is read and written, how deep it nests, and
what it inflates to. Must not know who shows them, nor any registry.
"""
