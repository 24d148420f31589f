"""The disk: files, names in a store directory, settings files, syncs.

Imported from outside: ``configfile``, ``cuts``, ``damage``, ``directory``, ``diskjobs``, ``files``, ``filesystemsync``,
``kernelsync``, ``layout``, ``logpaths``, ``mapping``, ``notes``, ``residency``, ``retention``, ``savedtables``,
``trusted``. Must not know messages.
"""
