"""Avro: types of a text, resolution of two schemas, checks of payloads.

Imported from outside: ``avrodefaults``, ``avroschema``, ``avrotypes``. Must not know the other languages.
"""
