"""The slaves of a master.

Imported from outside: ``replicas``. Must not know the socket that a slave is connected to.
"""
