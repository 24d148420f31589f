"""The methods of the service, a module for each group of them.

Imported from outside: all but ``grpclite``'s checks. Must not know HTTP/2.
"""
