"""The CommitLog: segments, and records read from them in runs. Knows the disk, no queue."""
