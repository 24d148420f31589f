"""The disk: files, names in a store directory, settings files, syncs.

Must not know messages.
"""
