"""Serving pulls and looking up messages. Knows the state, not send."""
