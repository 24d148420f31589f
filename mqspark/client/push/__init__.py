"""The push consumer: listeners called in order or concurrently.

Imported from outside: ``push``. Must not know the other kinds of consumers.
"""
