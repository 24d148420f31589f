"""The tables that a broker keeps in ``config/``: topics, groups, offsets, filters.

Must not know who changes them.
"""
