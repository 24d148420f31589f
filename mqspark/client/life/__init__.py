"""From the start of a client to its end, or that of its program: tasks that end with it, and its pauses.

Must not know what a client does.
"""
