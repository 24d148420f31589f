"""What all consumers are: a member of a group, its queues and its progress."""
