"""A store directory as seen by tools and other processes. A running broker imports only ``indexbuild`` from here, and
of ``compactor`` what it says to its process.

Imported from outside: ``compactionfiles``, ``compactor``, ``diverged``, ``dump``, ``fsck``, ``offline``, ``reader``,
``remake``, ``storestats``. Must not know the broker.
"""
