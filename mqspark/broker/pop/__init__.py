"""POP: handing out messages, check points, acknowledgements, revival. Knows pull and the state."""
