"""Opening a directory after a stop or crash, and rebuilding queues from the log."""
