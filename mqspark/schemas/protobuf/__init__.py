"""Protobuf: a .proto text read and printed, its files and types, compatibility, checks of payloads.

Must not know the other languages.
"""
