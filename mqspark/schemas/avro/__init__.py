"""Avro: types of a text, resolution of two schemas, checks of payloads.

Must not know the other languages.
"""
