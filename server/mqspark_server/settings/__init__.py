"""From files, environment and ``--set`` to settings objects.

Must not know sockets or a running server.
"""
