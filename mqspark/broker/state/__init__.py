"""State shared by the processors: connected clients, drafts, locks, answers held back.

Must not know any processor.
"""
