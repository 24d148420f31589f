"""The methods of the service, a module for each group of them.

Must not know HTTP/2.
"""
