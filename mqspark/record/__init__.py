"""The stored message record, the same in the CommitLog and in pull bodies: its layout, its body, the items of a batch.

Knows messages. Must not know where bytes come from: no files, no sockets.
"""
