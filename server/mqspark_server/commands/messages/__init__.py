"""Commands that send, read and find messages, on any RocketMQ cluster.

Imported from outside: the commands, by name. Must not know the files of a store: messages come over the wire.
"""
