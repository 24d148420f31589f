"""Interceptors around sends and listeners, and message trace, which is built on them.

Imported from outside: ``hooks``, ``spans``, ``trace``. Must not know producers and consumers.
"""
