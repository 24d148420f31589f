"""Timer messages: the wheel, its log and their files.

Must not know the CommitLog or when a message is due at a broker.
"""
