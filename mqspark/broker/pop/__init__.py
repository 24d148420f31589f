"""POP: handing out messages, check points, acknowledgements, revival.

Knows pulls and the state. Must not know administration.
"""
