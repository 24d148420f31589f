"""The common part of all consumers: group membership, queue assignment and progress.

Must not know which kind of consumer uses it.
"""
