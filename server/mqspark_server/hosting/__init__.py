"""Several servers on one host, each a process: one supervisor, one settings file, one page of metrics and health.

Must not know the inside of a server: it reads READY lines, log lines and what a server shows over HTTP.
"""
