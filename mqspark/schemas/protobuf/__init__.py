"""Protobuf: a .proto text read and printed, its files and types, compatibility, checks of payloads.

Imported from outside: ``protoschema``, ``prototext``. Must not know the other languages.
"""
