"""From files, environment and ``--set`` to settings objects.

Imported from outside: ``declarations``, ``entrypoints``, ``reported``, ``rocketmq_keys``, ``serverconfig``,
``settings``, ``settingsfile``. Must not know sockets or a running server.
"""
