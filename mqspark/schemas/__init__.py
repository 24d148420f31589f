"""Schemas of messages in Avro, JSON Schema and Protobuf: parsing, sameness, compatibility, checks of payloads.

For other rooms:

- ``parsedschema``: Schema, Reference, Flaw, the names of the languages; ``parsing.parse`` makes a Schema of a text;
- ``compatibility``: the rules, and what breaks them (``incompatibilities``);
- ``payloadvalues``: payloads as Python values, and back (``values_of``);
- ``schemaprefix``: the bytes in front of a payload that name its schema;
- ``avro``, ``jsonschema``, ``protobuf``: the languages, each in a room of its own.

Pure: no files, sockets, clocks. A text comes from a peer, so that each step is bounded before it starts. The packages
that JSON Schema and Protobuf need are imported where they are used.
"""
