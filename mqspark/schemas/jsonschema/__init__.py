"""JSON Schema: references, what two schemas allow, checks of payloads and what they cost.

Imported from outside: ``jsonschemas``. Must not know the other languages.
"""
