"""The disk: files, names in a store directory, settings files, what is synced. Knows no message."""
