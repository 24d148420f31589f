"""What servers say to each other: registration at name servers, and the log between master and slave.

Must not know requests of clients.
"""
