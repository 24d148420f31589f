"""The common part of all consumers: group membership, queue assignment and progress."""
