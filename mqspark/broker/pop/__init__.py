"""Handing out by POP: check points, acknowledgements, revival. Knows pull and the state."""
