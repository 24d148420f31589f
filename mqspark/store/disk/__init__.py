"""The disk: files, names in a store directory, settings files, syncs.

Imported from outside: ``beginnote``, ``brokeridentity``, ``checkpoint``, ``configfile``, ``cuts``, ``damage``,
``directory``, ``durable``, ``files``, ``filesystemsync``, ``flush``, ``kernelsync``, ``layout``, ``logpaths``,
``mapping``, ``membernote``, ``residency``, ``retention``, ``saved``, ``tablenotes``, ``trusted``. Must not know
messages.
"""
