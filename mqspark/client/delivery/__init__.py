"""Messages between queue and listener, and their results.

Imported from outside: ``awaiting``, ``delivery``, ``flow``, ``process_queue``, ``results``, ``statistics``. Must not
know producers and consumers.
"""
