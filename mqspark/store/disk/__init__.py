"""The disk: files, names in a store directory, settings files, syncs.

Imported from outside: ``configfile``, ``cuts``, ``damage``, ``directory``, ``files``, ``filesystemsync``, ``flush``,
``kernelsync``, ``layout``, ``logpaths``, ``mapping``, ``notes``, ``residency``, ``retention``, ``saved``, ``trusted``.
Must not know messages.
"""
