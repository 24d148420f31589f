"""Interceptors around sends and listeners, and message trace, which is built on them."""
