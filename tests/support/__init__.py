"""What the tests of several folders share: waiting, processes, clusters, stores, scripted servers, the cache of jars.

``tests/README.md`` says which module has what. A test has no waiting loop, process or cache of its own beside these.
"""
