"""A broker's own compaction, in a process beside it.

Must not know how records are compacted, nor when a run is due.
"""
