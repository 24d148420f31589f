"""The lite pull consumer: the program asks for messages.

Imported from outside: ``litepull``. Must not know the other kinds of consumers.
"""
