"""Messages for later: delay levels, timer messages, recall."""
