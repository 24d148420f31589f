"""A store directory as seen by tools and other processes. A running broker imports only ``indexbuild`` from here.

Imported from outside: ``compactionfiles``, ``dump``, ``fsck``, ``offline``, ``reader``, ``remake``, ``storestats``.
Must not know the broker.
"""
