"""What every server's process has in common: its life, its disk work, its pauses.

Must not know which server it is.
"""
