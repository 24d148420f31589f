"""From files, environment and ``--set`` to settings objects.

Imported from outside: ``declarations``, ``entrypoints``, ``reported``, ``serverconfig``, ``settings``,
``settingsfile``. Must not know sockets or a running server.
"""
