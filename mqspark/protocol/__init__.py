"""The remoting protocol, sans-I/O: bytes in, commands out, and back.

Must not import asyncio, socket, threading, time or random.
"""
