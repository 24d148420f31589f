"""Shared by the tests of several folders: waiting, processes, clusters, stores, scripted servers, the cache of jars.

``tests/README.md`` lists the modules. Tests must not have waiting loops, processes or caches of their own.
"""
