"""The push consumer: listeners called in order or concurrently.

Must not know the other kinds of consumers.
"""
