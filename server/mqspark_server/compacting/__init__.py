"""A broker's own compaction, in a process beside it.

Imported from outside: ``compactrunner``, ``mastercopy``. Must not know how records are compacted, nor when a
run is due.
"""
