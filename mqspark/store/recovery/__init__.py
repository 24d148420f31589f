"""Everything between finding a directory and serving it, and queues made anew from the log."""
