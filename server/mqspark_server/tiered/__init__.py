"""Tiered reads: what the log no longer has comes from the table that the job ``archive`` wrote.

Imported from outside: ``archivetier``. A process of its own reads the archive: storage that hangs, and Parquet that
lies, hold up or kill that process alone. Must not know the requests of clients.
"""
