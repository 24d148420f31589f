"""Timer messages: the wheel, its log and their files.

Imported from outside: ``timerfiles``, ``timerlog``, ``timerwheel``. Must not know the CommitLog or when a message is
due at a broker.
"""
