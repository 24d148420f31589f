"""Messages by key. Knows the log and the disk, no queue."""
