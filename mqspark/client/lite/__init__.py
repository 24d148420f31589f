"""The lite pull consumer: the program asks for messages.

Imported from outside: ``assigned``, ``litepull``. Must not know the other kinds of consumers.
"""
