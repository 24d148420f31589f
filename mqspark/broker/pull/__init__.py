"""Serving pulls and looking messages up. Knows the state, no send."""
