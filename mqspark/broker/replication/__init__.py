"""Master and slave: copies of the log.

Must not know the sockets between them.
"""
