"""Interceptors around sends and listeners, and message trace, which is built on them.

Must not know producers and consumers.
"""
