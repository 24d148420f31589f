"""Commands that send, read and find messages, on any RocketMQ cluster.

Must not know the files of a store: messages come over the wire.
"""
