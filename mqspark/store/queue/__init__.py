"""ConsumeQueues of all kinds. Knows the log and the disk, no index."""
