"""The lite pull consumer: the program asks for messages.

Must not know the other kinds of consumers.
"""
