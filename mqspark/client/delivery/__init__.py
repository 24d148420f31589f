"""Messages between a queue and a listener, and what becomes of them. Knows no connection."""
