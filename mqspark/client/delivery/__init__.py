"""Messages between queue and listener, and their results. Knows no connection."""
