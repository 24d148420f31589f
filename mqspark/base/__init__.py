"""What every part stands on: names that peers choose, bounded tables, settings, clocks, log lines, whole files,
the property string.

Knows ``mqspark.errors`` alone. Must not know messages, the wire or a store.
"""
