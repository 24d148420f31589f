"""JSON Schema: references, what two schemas allow, checks of payloads and what they cost.

Must not know the other languages.
"""
